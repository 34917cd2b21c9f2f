#!/bin/sh
# A merchant in another language: drives sales and a form to their outcomes by the control API, with curl alone.
# Usage: drive_simulator.sh READY_FILE, as `payclient simulate --scenario by-hand --port 0 --ready-file F` writes it.
set -eu

field() { sed -n "s/.*\"$1\": *\"\{0,1\}\([^\",}]*\).*/\1/p"; }

url=$(field url < "$1")
token=$(field token < "$1")

post() {  # path, members beside the money and the store
    curl -sS "$url/api/$1" -H "Authorization: Bearer $token" -H 'Content-Type: application/json' -d "{
        \"amount\": 1150, \"amountWithoutTax\": 1150, \"currency\": \"USD\", \"storeId\": \"S1\", $2}"
}
sale() {  # client transaction id, phone
    post Sale "\"phoneNumber\": \"$2\", \"countryCode\": \"593\", \"clientTransactionId\": \"$1\""
}
control() { curl -sS "$url/_simulator/$1" -H 'Content-Type: application/json' -d "$2"; }
state() { curl -sS "$url/api/Sale/client/$1" -H "Authorization: Bearer $token" | field transactionStatus; }
count() { control counts '{}' | field "$1"; }
say() { echo "$1: $2"; }

id=$(sale order-1 0984111201 | field transactionId)
say pending "$(state order-1)"
control approve "{\"sale\": $id}" > /dev/null
say accepted "$(state order-1)"

sale order-2 0984111202 > /dev/null
control reject '{"sale": "order-2"}' > /dev/null
say cancelled "$(state order-2)"

sale order-3 0984111203 > /dev/null
say busy "$(sale order-4 0984111203 | grep -o '"errorCode":2061')"
control advance '{"seconds": 300}' > /dev/null
say expired "$(state order-3) $(count expired)"

control fail_next '{"fault": {"kind": "reset", "when": "after"}}' > /dev/null
say lost "$(sale order-5 0984111205 2> /dev/null || echo "curl exit $?") $(state order-5)"
say created "$(count created)"

form=$(post button/Prepare '"clientTransactionId": "cart-1", "responseUrl": "https://shop.example/back"' | field paymentId)
control pay "{\"payment_id\": \"$form\", \"method\": \"wallet\"}" > /dev/null
say form "paid $(state cart-1) $(count forms_paid)"
