// What a consuming driver is told, and how it tells what its client handed out: the interface of driver.py in the folder
// above, and
//
//     --protocol P   the group protocol, for clients that have several
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;

public class Task {
    static final long DEADLINE_MS = 120_000;

    public static class Range {
        public final String topic;
        public final int partition;
        public final long start, end;

        Range(String text) {
            String[] part = text.split(":");
            topic = part[0];
            partition = Integer.parseInt(part[1]);
            start = Long.parseLong(part[2]);
            end = Long.parseLong(part[3]);
        }

        String name() {
            return topic + ":" + partition;
        }
    }

    public final String bootstrap;
    public final List<Range> ranges = new ArrayList<>();
    private final Map<String, String> options = new HashMap<>();
    private final Map<String, Long> ends = new HashMap<>();
    private final long started = System.currentTimeMillis();

    public Task(String[] arguments) {
        bootstrap = arguments[0];
        for (int i = 1; i < arguments.length; i++) {
            if (arguments[i].equals("--share")) {
                options.put(arguments[i], "");
            } else if (arguments[i].startsWith("--")) {
                options.put(arguments[i], arguments[++i]);
            } else {
                Range range = new Range(arguments[i]);
                ranges.add(range);
                ends.put(range.name(), range.end);
            }
        }
    }

    public String option(String name) {
        return options.get("--" + name);
    }

    public Long time() {
        return option("time") == null ? null : Long.valueOf(option("time"));
    }

    public List<String> topics() {
        LinkedHashSet<String> topics = new LinkedHashSet<>();
        for (Range range : ranges) {
            topics.add(range.topic);
        }
        return new ArrayList<>(topics);
    }

    public boolean isDone() {
        if (System.currentTimeMillis() - started > DEADLINE_MS) {
            throw new IllegalStateException("the ends were not reached: " + ends);
        }
        return ends.isEmpty() || (options.containsKey("--share") && ends.size() < ranges.size());
    }

    public boolean isReading(Range range) {
        return ends.containsKey(range.name());
    }

    public void record(String topic, int partition, long offset, byte[] key, byte[] value, Long timestamp) {
        System.out.println("{\"topic\": \"" + topic + "\", \"partition\": " + partition + ", \"offset\": " + offset
            + ", \"key\": " + text(key) + ", \"value\": " + text(value) + ", \"timestamp\": " + timestamp + "}");
        System.out.flush();
        reached(topic, partition, offset + 1);
    }

    public void reached(String topic, int partition, long position) {
        Long end = ends.get(topic + ":" + partition);
        if (end != null && position >= end) {
            ends.remove(topic + ":" + partition);
        }
    }

    private static String text(byte[] data) {
        return data == null ? "null" : "\"" + Base64.getEncoder().encodeToString(data) + "\"";
    }
}
