/** What the server would say to a write: it is asked, and writes nothing, whenever the text rests. */
import { call } from "../api.js";
import { useEffect, useRested, useState } from "../ui.js";

export const YAML = "application/yaml";

/**
 * @param {string|null} text null: nothing is asked.
 * @returns {[{of: string|null, data?: any, warnings?: string[], error?: Error}, (verdict: any) => void]} The last
 *   verdict, which is about the text `of`, and a function for one that comes from elsewhere.
 */
export function useDryRun(method, path, text, type) {
  const rested = useRested(text, 400);
  const [verdict, setVerdict] = useState({ of: null });
  useEffect(() => {
    if (rested === null) return undefined;
    const stop = new AbortController();
    call(method, `${path}?dryRun=All`, { body: rested, type, signal: stop.signal }).then(
      ({ data, warnings }) => setVerdict({ of: rested, data, warnings }),
      (error) => stop.signal.aborted || setVerdict({ of: rested, error }),
    );
    return () => stop.abort();
  }, [method, path, rested, type]);
  return [verdict, setVerdict];
}
