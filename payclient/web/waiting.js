// The page may be suspended while its customer is in the app: the script queries as soon as the page is shown again.
(function () {
  var box = document.getElementById("wait"), clock = document.getElementById("clock");
  var offline = document.getElementById("offline");
  var end = Date.now() + 1000 * Number(box.dataset.seconds), timer = 0, asking = false, over = false;
  function show() {
    var left = Math.max(0, Math.ceil((end - Date.now()) / 1000));
    if (!clock) { return; }
    clock.textContent = Math.floor(left / 60) + ":" + String(left % 60).padStart(2, "0");
    if (left === 0 && !over) { over = true; setTimeout(function () { location.reload(); }, 2000); }
  }
  function later(seconds) {
    clearTimeout(timer);
    timer = setTimeout(ask, 1000 * seconds);
  }
  function ask() {
    if (asking) { return; }
    asking = true;
    fetch(box.dataset.status, {cache: "no-store", headers: {Accept: "application/json"}})
      .then(function (answer) { if (!answer.ok) { throw new Error(); } return answer.json(); })
      .then(function (sale) {
        asking = false;
        offline.hidden = true;
        if (sale.waiting === false) { location.reload(); return; }
        end = Date.now() + 1000 * sale.remaining;
        later(2);
      })
      .catch(function () { asking = false; offline.hidden = false; later(5); });
  }
  show();
  setInterval(show, 500);
  document.addEventListener("visibilitychange", function () { if (!document.hidden) { ask(); } });
  window.addEventListener("online", ask);
  later(2);
})();
