#!/bin/sh
# A merchant in another language: drives sales and forms to each of their outcomes by the control API, with curl alone.
# Usage: drive_simulator.sh READY_FILE, as `payclient simulate --scenario by-hand --port 0 --ready-file F` writes it.
set -eu

field() { sed -n "s/.*\"$1\": *\"\{0,1\}\([^\",}]*\).*/\1/p"; }

url=$(field url < "$1")
token=$(field token < "$1")

sale() {  # client transaction id, phone, amount, component
    curl -sS -X POST "$url/api/Sale" -H "Authorization: Bearer $token" -H 'Content-Type: application/json' -d "{
        \"phoneNumber\": \"$2\", \"countryCode\": \"593\", \"amount\": $3, \"amountWithoutTax\": $4,
        \"currency\": \"USD\", \"clientTransactionId\": \"$1\", \"storeId\": \"S1\"}"
}
form() {  # client transaction id
    curl -sS -X POST "$url/api/button/Prepare" -H "Authorization: Bearer $token" -H 'Content-Type: application/json' -d "{
        \"amount\": 990, \"amountWithoutTax\": 990, \"currency\": \"USD\", \"clientTransactionId\": \"$1\", \"storeId\": \"S1\",
        \"responseUrl\": \"https://shop.example/back\", \"cancellationUrl\": \"https://shop.example/closed\"}" | field paymentId
}
of_client() { curl -sS "$url/api/Sale/client/$1" -H "Authorization: Bearer $token" | field transactionStatus; }
count() { curl -sS "$url/_simulator/counts" | field "$1"; }
control() {  # operation, arguments
    curl -sS "$url/_simulator/$1" -H 'Content-Type: application/json' -d "$2"
}
state() { curl -sS "$url/api/Sale/$1" -H "Authorization: Bearer $token" | field transactionStatus; }
say() { echo "$1: $2"; }

id=$(sale order-1 0984111201 1150 1150 | field transactionId)
say pending "$(state "$id")"
control approve "{\"sale\": $id}" > /dev/null
say accepted "$(state "$id")"

id=$(sale order-2 0984111202 1150 1150 | field transactionId)
control reject '{"sale": "order-2"}' > /dev/null
say cancelled "$(state "$id")"

id=$(sale order-3 0984111203 1150 1150 | field transactionId)
control advance '{"seconds": 300}' > /dev/null
say expired "$(state "$id") $(count expired)"

sale order-4 0984111204 1150 1150 > /dev/null
say busy "$(sale order-5 0984111204 1150 1150 | grep -o '"errorCode":2061')"

control fail_next '{"fault": {"kind": "refuse", "error_code": 22}}' > /dev/null
say refused "$(sale order-6 0984111206 1150 1150 | grep -o '"errorCode":22\b')"

say invalid "$(sale order-7 0984111207 1150 1149 | grep -o '"errorCode":800')"

control fail_next '{"fault": {"kind": "reset", "when": "after"}}' > /dev/null
say lost "$(sale order-8 0984111208 1150 1150 2> /dev/null || echo "curl exit $?") \
$(of_client order-8)"

say created "$(count created)"

control pay "{\"payment_id\": \"$(form cart-1)\", \"method\": \"wallet\"}" > /dev/null
say form "paid $(of_client cart-1) $(count forms_paid)"

control pay "{\"payment_id\": \"$(form cart-2)\", \"declined\": true}" > /dev/null
say declined "declined $(of_client cart-2) $(count forms_declined)"

say closed "$(control cancel_form "{\"payment_id\": \"$(form cart-3)\"}" | tr -d '"') $(count forms_cancelled)"
