// Without an address, so that one hash fits all; `replace` leaves no page behind that would move on again.
location.replace(document.getElementById("go").href);
