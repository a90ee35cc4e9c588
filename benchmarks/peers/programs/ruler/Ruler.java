import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import software.amazon.event.ruler.Machine;

/** event-ruler as a program of `benchmarks.peers`: how it is asked and what it says is in `benchmarks/peers/matchers.py`. */
public final class Ruler {
    private Ruler() {}

    public static void main(String[] arguments) throws Exception {
        List<String> events = Files.readAllLines(Path.of(arguments[0]));
        List<String> rules = Files.readAllLines(Path.of(arguments[1]));
        int sample = Integer.parseInt(arguments[2]);

        long started = System.nanoTime();
        Machine machine = new Machine();
        for (int number = 0; number < rules.size(); number++) {
            machine.addRule(Integer.toString(number), rules.get(number));
        }
        double buildS = (System.nanoTime() - started) / 1e9;

        long matches = 0;
        long sum = 0;
        for (int number = 0; number < sample; number++) {
            for (String rule : machine.rulesForJSONEvent(events.get(number))) {
                matches++;
                sum += (number + 1L) * (Long.parseLong(rule) + 1);
            }
        }
        say("{\"build_s\":%.3f,\"matches\":%d,\"sum\":%d}", buildS, matches, sum);

        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in));
        for (String line = asked.readLine(); line != null; line = asked.readLine()) {
            long runNs = (long) (Double.parseDouble(line) * 1e9);
            long count = 0;
            matches = 0;
            started = System.nanoTime();
            for (int next = 0; System.nanoTime() - started < runNs; next = (next + 1) % events.size()) {
                matches += machine.rulesForJSONEvent(events.get(next)).size();
                count++;
            }
            double wallS = (System.nanoTime() - started) / 1e9;
            say("{\"events\":%d,\"matches\":%d,\"wall_s\":%.6f}", count, matches, wallS);
        }
    }

    private static void say(String form, Object... values) {
        System.out.println(String.format(Locale.ROOT, form, values));
        System.out.flush();
    }
}
