import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.Function;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.record.ConvertedRecords;
import org.apache.kafka.common.record.LazyDownConversionRecords;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MutableRecordBatch;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.utils.Time;

/**
 * Kafka's own record layer, driven like the other contenders (see protocol.py): a line "WORK PATH" in, a line of JSON out.
 *
 * Each work is run until its times are steady, for 5 seconds at least, before it is measured.
 */
public final class KafkaBench {
    private static final double WARM_UP_SECONDS = 5, MOST_WARM_UP_SECONDS = 10, STEADY = 1.05;
    private static final double SECONDS = 1, MOST_SECONDS = 5;
    private static final int RUNS = 7, FEWEST_RUNS = 2;
    private static final byte TO_MAGIC = 1;
    private static final int CHUNK_SIZE = 128 * 1024;

    private static final Map<String, Function<MemoryRecords, Tally>> WORKS = Map.of(
        "convert", KafkaBench::convert,
        "convert_lazily", KafkaBench::convertLazily,
        "walk", KafkaBench::walk,
        "shallow", KafkaBench::shallow);

    private record Tally(long count, long produced) { }

    private KafkaBench() { }

    public static void main(String[] arguments) throws IOException {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] request = line.split(" ", 2);
            ByteBuffer data = ByteBuffer.wrap(Files.readAllBytes(Path.of(request[1])));
            System.out.println(measure(WORKS.get(request[0]), data));
        }
    }

    private static String measure(Function<MemoryRecords, Tally> work, ByteBuffer data) {
        warmUp(work, data);
        List<Double> seconds = new ArrayList<>();
        Tally tally = null;
        double sum = 0;
        while ((seconds.size() < RUNS || sum < SECONDS) && (seconds.size() < FEWEST_RUNS || sum < MOST_SECONDS)) {
            long started = System.nanoTime();
            tally = work.apply(MemoryRecords.readableRecords(data.duplicate()));
            seconds.add((System.nanoTime() - started) / 1e9);
            sum += seconds.get(seconds.size() - 1);
        }
        Collections.sort(seconds);
        return String.format(Locale.ROOT,
            "{\"seconds\": %.9f, \"median_seconds\": %.9f, \"runs\": %d, \"count\": %d, \"produced\": %d}",
            seconds.get(0), seconds.get(seconds.size() / 2), seconds.size(), tally.count, tally.produced);
    }

    /** Runs until the last three times are within 5 % of each other. */
    private static void warmUp(Function<MemoryRecords, Tally> work, ByteBuffer data) {
        double[] last = new double[3];
        double sum = 0;
        for (int i = 0; sum < WARM_UP_SECONDS || (!isSteady(last) && sum < MOST_WARM_UP_SECONDS); i++) {
            long started = System.nanoTime();
            work.apply(MemoryRecords.readableRecords(data.duplicate()));
            last[i % last.length] = (System.nanoTime() - started) / 1e9;
            sum += last[i % last.length];
        }
    }

    private static boolean isSteady(double[] seconds) {
        double least = Double.MAX_VALUE, most = 0;
        for (double second : seconds) {
            least = Math.min(least, second);
            most = Math.max(most, second);
        }
        return most <= least * STEADY;
    }

    private static Tally convert(MemoryRecords records) {
        ConvertedRecords<MemoryRecords> converted = records.downConvert(TO_MAGIC, 0, Time.SYSTEM);
        return new Tally(converted.recordConversionStats().numRecordsConverted(), converted.records().sizeInBytes());
    }

    /** As a broker does it: chunk by chunk. */
    private static Tally convertLazily(MemoryRecords records) {
        LazyDownConversionRecords lazy =
            new LazyDownConversionRecords(new TopicPartition("topic", 0), records, TO_MAGIC, 0, Time.SYSTEM);
        long count = 0, produced = 0;
        Iterator<ConvertedRecords<?>> chunks = lazy.iterator(CHUNK_SIZE);
        while (chunks.hasNext()) {
            ConvertedRecords<?> chunk = chunks.next();
            count += chunk.recordConversionStats().numRecordsConverted();
            produced += chunk.records().sizeInBytes();
        }
        return new Tally(count, produced);
    }

    /** Checks the CRC of every batch and goes through its records. */
    private static Tally walk(MemoryRecords records) {
        long count = 0, size = 0;
        for (MutableRecordBatch batch : records.batches()) {
            batch.ensureValid();
            for (Record record : batch) {
                ByteBuffer key = record.key(), value = record.value();
                size += (key == null ? 0 : key.remaining()) + value.remaining();
                count++;
            }
        }
        return new Tally(count, size);
    }

    /** Reads nine fields of every header. */
    private static Tally shallow(MemoryRecords records) {
        long count = 0, fields = 0;
        for (MutableRecordBatch batch : records.batches()) {
            fields += batch.baseOffset() + batch.sizeInBytes() + batch.partitionLeaderEpoch() + batch.magic()
                + batch.compressionType().id + batch.lastOffset() + batch.maxTimestamp() + batch.producerId()
                + batch.countOrNull();
            count++;
        }
        return new Tally(count, fields);
    }
}
