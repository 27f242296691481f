// What the server knows. The address of the page holds the token, so that addresses relative to it hold it too.
export const get = async (path, query = {}) => {
  const answer = await fetch(`${path}?${new URLSearchParams(query)}`);
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.json();
};

// Listen to changes: of some runs, or of the list if `runs` is empty. Returns what ends it. A page that is hidden does
// not listen, because a browser opens only six connections to one server.
export const listen = (runs, handlers) => {
  const query = new URLSearchParams(runs.map((run) => ["run", run]));
  let source = null;
  const open = () => {
    if (source || document.hidden) return;
    const address = `events?${query}`;
    const mine = new EventSource(address);
    source = mine;
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
    }
    source.addEventListener("open", () => say(""));
    source.addEventListener("error", async () => {
      say("The server does not answer; trying again.");
      if (mine.readyState !== EventSource.CLOSED) return;
      const answer = await fetch(address).catch(() => null); // the browser tries no more: the server has refused
      if (answer && !answer.ok) say((await answer.text()).trim());
      else answer?.body.cancel();
    });
  };
  const close = () => {
    source?.close();
    source = null;
  };
  const follow = () => (document.hidden ? close() : open());
  document.addEventListener("visibilitychange", follow);
  open();
  return () => {
    document.removeEventListener("visibilitychange", follow);
    close();
  };
};

const say = (text) => {
  const place = document.getElementById("connection");
  if (place.textContent !== text) place.textContent = text;
};
