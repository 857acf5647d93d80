// Follows a log file: asks for what came after the part that is shown.

const MAX_CHARACTERS = 2000000;

export function startLog() {
  const log = document.getElementById("log");
  if (!log) return;
  const follow = document.getElementById("follow");
  const problem = document.getElementById("lost");
  let offset = Number(log.dataset.offset);
  let inode = Number(log.dataset.inode || 0);
  let timer = 0;
  let asking = false;

  const toEnd = () => { log.scrollTop = log.scrollHeight; };

  async function ask() {
    clearTimeout(timer);
    if (document.hidden || !follow.checked || asking) return;
    asking = true;
    let more = false;
    try {
      const address = new URL(log.dataset.source, location.href);
      address.searchParams.set("offset", offset);
      if (inode) address.searchParams.set("inode", inode);
      const answer = await fetch(address);
      const told = await answer.json();
      if (!answer.ok) throw new Error(told.error || answer.status);
      problem.hidden = true;
      if (told.text) {
        const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
        log.append(told.text);
        while (log.textContent.length > MAX_CHARACTERS && log.firstChild !== log.lastChild) {
          log.firstChild.remove();
        }
        if (atEnd) toEnd();
      }
      more = told.more;
      offset = told.offset;
      inode = told.inode;
    } catch (error) {
      problem.textContent = `The log cannot be followed: ${error.message}`;
      problem.hidden = false;
    }
    asking = false;
    timer = setTimeout(ask, more ? 0 : 1000);
  }

  follow.addEventListener("change", ask);
  document.addEventListener("visibilitychange", ask);
  toEnd();
  ask();
}
