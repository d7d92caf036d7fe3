// ---- A notification of the browser where a run comes to need a person: asked for by a click, and remembered

const bell = byId("notify"), noticed = `needs ${document.title}`, canNotify = "Notification" in window && isSecureContext;
const notifies = () => canNotify && Notification.permission === "granted" && localStorage.getItem("notify") === "on";
function showBell() {
  const isBlocked = canNotify && Notification.permission === "denied";
  [bell.ariaPressed, bell.disabled, bell.textContent] = [`${notifies()}`, !canNotify || isBlocked, notifies() ? "Notifications on" : isBlocked ? "Notifications blocked" : "Notify me"];
  bell.title = !canNotify ? "The browser notifies only from https or localhost: open the page through an SSH tunnel" : isBlocked ? "Blocked in the browser's settings of this page" : "A notification when a run comes to need a person";
}
bell.onclick = async () => {
  const on = !notifies() && (await Notification.requestPermission()) === "granted";
  localStorage.setItem("notify", on ? "on" : "off");
  showBell();
};
function notify(needs) {
  const before = parsed(sessionStorage.getItem(noticed) ?? JSON.stringify(needs)), came = keys(needs).filter((run) => !(run in before));
  sessionStorage.setItem(noticed, JSON.stringify(needs)); // outlives that the page is loaded anew
  if (came.length && notifies()) new Notification(came.length > 1 ? `${came.length} runs need a person` : `${came[0]} needs a person`, { body: came.slice(0, 3).map((run) => needs[run]).join("\n") });
}
showBell();
