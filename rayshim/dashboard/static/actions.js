// Buttons and forms that change something: they send JSON, with this page's Origin.

async function send(method, address, body) {
  const answer = await fetch(address, {
    method,
    headers: body ? { "content-type": "application/json" } : {},
    body: body ? JSON.stringify(body) : undefined,
  });
  const text = await answer.text();
  let told = text;
  try { told = JSON.parse(text); } catch { /* an answer in plain text */ }
  if (!answer.ok) {
    const why = typeof told === "string" ? told : told.error || told.msg || text;
    throw new Error(`${answer.status}: ${why}`);
  }
  return told;
}

function say(text) {
  const lost = document.getElementById("lost");
  lost.textContent = text;
  lost.hidden = !text;
  if (text) lost.scrollIntoView({ block: "nearest" });
}

function parsed(name, text) {
  if (!text.trim()) return undefined;
  try { return JSON.parse(text); } catch (error) {
    throw new Error(`${name} is not JSON: ${error.message}`);
  }
}

function jobOf(form) {
  const data = new FormData(form);
  const text = (name) => String(data.get(name) || "").trim();
  const job = { entrypoint: text("entrypoint") };
  if (text("submission_id")) job.submission_id = text("submission_id");
  const environment = parsed("The runtime environment", text("runtime_env"));
  if (environment) job.runtime_env = environment;
  const metadata = parsed("The metadata", text("metadata"));
  if (metadata) job.metadata = metadata;
  for (const name of ["entrypoint_num_cpus", "entrypoint_num_gpus"]) {
    if (text(name)) job[name] = Number(text(name));
  }
  return job;
}

export function startActions() {
  const form = document.getElementById("submit-job");
  if (form) {
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const button = form.querySelector("button");
      button.disabled = true;
      try {
        const told = await send("POST", "/api/jobs/", jobOf(form));
        location.assign(`/jobs/${encodeURIComponent(told.submission_id || told.job_id)}`);
      } catch (error) {
        say(`The job was not submitted. ${error.message}`);
        button.disabled = false;
      }
    });
  }
  // Buttons come and go with what is refreshed, so it is the document that listens.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-send]");
    if (!button || !confirm(button.dataset.confirm)) return;
    button.disabled = true;
    try {
      await send(button.dataset.method, button.dataset.send);
      say("");
      if (button.dataset.then) location.assign(button.dataset.then);
    } catch (error) {
      say(`${button.textContent} failed. ${error.message}`);
      button.disabled = false;
    }
  });
}
