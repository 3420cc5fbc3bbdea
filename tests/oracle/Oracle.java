import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.ByteBuffer;
import java.util.HashSet;
import java.util.OptionalLong;
import java.util.Set;
import org.apache.kafka.clients.producer.internals.ProducerBatch;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.errors.CorruptRecordException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.CompressionRatioEstimator;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.ControlRecordType;
import org.apache.kafka.common.record.ConvertedRecords;
import org.apache.kafka.common.record.DefaultRecordBatch;
import org.apache.kafka.common.record.EndTransactionMarker;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.MutableRecordBatch;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.SimpleRecord;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.ByteBufferOutputStream;
import org.apache.kafka.common.utils.ProducerIdAndEpoch;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Utils;

/**
 * Kafka's record layer behind one call: a JSON array of requests in, a JSON array of answers out, bytes as base64.
 * One call carries many requests, because a call from Python costs more than decoding a batch.
 *
 * A request names its "op": "decode", "validate", "estimate", "down_convert", "build", "filter" or "split". kafka.py
 * describes the fields of requests and answers. An exception becomes {"error": simple class name, "message": ...}.
 */
public final class Oracle {
    private static final ObjectMapper JSON = new ObjectMapper();

    private Oracle() { }

    public static String run(String requests) throws Exception {
        ArrayNode answers = JSON.createArrayNode();
        for (JsonNode request : JSON.readTree(requests)) {
            try {
                answers.add(answer(request));
            } catch (Exception | Error e) {
                refuse(answers.addObject(), e);
            }
        }
        return JSON.writeValueAsString(answers);
    }

    private static void refuse(ObjectNode node, Throwable e) {
        node.put("error", e.getClass().getSimpleName()).put("message", String.valueOf(e.getMessage()));
    }

    private static ObjectNode answer(JsonNode request) throws java.io.IOException {
        ObjectNode answer = JSON.createObjectNode();
        String op = request.get("op").asText();
        switch (op) {
            case "decode":
                decode(readable(request), answer);
                return answer;
            case "validate":
                answer.set("values", validate(readable(request)));
                return answer;
            case "estimate":
                answer.set("sizes", estimate(request));
                return answer;
            case "down_convert":
                ConvertedRecords<MemoryRecords> converted = readable(request).downConvert(
                    (byte) request.get("to_magic").asInt(), request.get("first_offset").asLong(), Time.SYSTEM);
                answer.put("bytes", bytes(converted.records().buffer()));
                answer.put("records_converted", converted.recordConversionStats().numRecordsConverted());
                answer.put("temporary_memory_bytes", converted.recordConversionStats().temporaryMemoryBytes());
                decode(converted.records(), answer);
                return answer;
            case "build":
                answer.put("bytes", bytes(build(request)));
                return answer;
            case "filter":
                return answer.put("bytes", filter(readable(request), request.withArray("keys")));
            case "split":
                split(request, answer);
                return answer;
            default:
                throw new IllegalArgumentException("no such op: " + op);
        }
    }

    private static MemoryRecords readable(JsonNode request) throws java.io.IOException {
        return MemoryRecords.readableRecords(ByteBuffer.wrap(request.get("data").binaryValue()));
    }

    /** As the log cleaner: without records of these keys. Empty v2 batches of producers stay, and those that were empty. */
    private static byte[] filter(MemoryRecords records, ArrayNode keys) throws java.io.IOException {
        Set<ByteBuffer> erased = new HashSet<>();
        for (JsonNode key : keys)
            erased.add(ByteBuffer.wrap(key.binaryValue()));
        MemoryRecords.RecordFilter filter = new MemoryRecords.RecordFilter(0L, 0L) {
            @Override
            protected BatchRetentionResult checkBatchRetention(RecordBatch batch) {
                boolean keptEmpty = batch.magic() >= 2 && (batch.hasProducerId() || Integer.valueOf(0).equals(batch.countOrNull()));
                return new BatchRetentionResult(keptEmpty ? BatchRetention.RETAIN_EMPTY : BatchRetention.DELETE_EMPTY, false);
            }

            @Override
            protected boolean shouldRetainRecord(RecordBatch batch, Record record) {
                return batch.isControlBatch() || !record.hasKey() || !erased.contains(record.key());
            }
        };
        MemoryRecords.FilterResult result = records.filterTo(new TopicPartition("erased", 0), filter,
            ByteBuffer.allocate(4 * records.sizeInBytes() + 1024), Integer.MAX_VALUE, BufferSupplier.NO_CACHING);
        ByteBuffer output = result.outputBuffer();
        output.flip();
        return Utils.toArray(output);
    }

    /** The batches, and the error at which Kafka ends them. */
    private static void decode(MemoryRecords records, ObjectNode answer) {
        ArrayNode batches = answer.putArray("batches");
        try {
            for (MutableRecordBatch batch : records.batches())
                batch(batch, batches.addObject());
        } catch (Exception | Error e) {
            refuse(answer, e);
        }
    }

    /** As a consumer reads: the CRC of each batch is checked, and that of each message in a wrapper. */
    private static ArrayNode validate(MemoryRecords records) {
        ArrayNode values = JSON.createArrayNode();
        for (MutableRecordBatch batch : records.batches()) {
            batch.ensureValid();
            for (Record record : batch) {
                record.ensureValid();
                values.add(bytes(record.value()));
            }
        }
        return values;
    }

    /** The size that a builder estimates after each record that fits. The request has the sizes of their values. */
    private static ArrayNode estimate(JsonNode spec) {
        CompressionType type = CompressionType.forId(spec.path("codec").asInt(0));
        MemoryRecordsBuilder builder = new MemoryRecordsBuilder(new ByteBufferOutputStream(64),
            (byte) spec.get("magic").asInt(), Compression.of(type).build(), TimestampType.CREATE_TIME, 0L,
            RecordBatch.NO_TIMESTAMP, RecordBatch.NO_PRODUCER_ID, RecordBatch.NO_PRODUCER_EPOCH,
            RecordBatch.NO_SEQUENCE, false, false, RecordBatch.NO_PARTITION_LEADER_EPOCH,
            spec.get("batch_size").asInt());
        builder.setEstimatedCompressionRatio((float) spec.get("estimated_ratio").asDouble());
        ArrayNode sizes = JSON.createArrayNode();
        for (JsonNode size : spec.withArray("value_sizes")) {
            byte[] value = new byte[size.asInt()];
            if (!builder.hasRoomFor(0L, (byte[]) null, value, Record.EMPTY_HEADERS))
                break;
            builder.append(0L, (byte[]) null, value);
            sizes.add(builder.estimatedSizeInBytes());
        }
        builder.abort();
        return sizes;
    }

    /** The fields and the records of a batch, up to the first one that Kafka refuses, and that error. */
    private static void batch(RecordBatch batch, ObjectNode node) {
        try {
            header(batch, node);
            boolean valid = batch.isValid();
            ArrayNode records = node.putArray("records");
            for (Record record : batch) {
                records.add(record(batch, record));
                valid &= crcHolds(record);
            }
            node.put("valid", valid);
        } catch (Exception | Error e) {
            refuse(node, e);
        }
    }

    /** Whether the CRC of a message in a wrapper is right. Records of v2 have none of their own. */
    private static boolean crcHolds(Record record) {
        try {
            record.ensureValid();
            return true;
        } catch (CorruptRecordException e) {
            return false;
        }
    }

    private static void header(RecordBatch batch, ObjectNode node) {
        node.put("magic", batch.magic()).put("size_in_bytes", batch.sizeInBytes());
        node.put("crc", batch.checksum()).put("crc_holds", batch.isValid());
        node.put("last_offset", batch.lastOffset()).put("next_offset", batch.nextOffset());
        node.put("timestamp_type", batch.timestampType().id).put("max_timestamp", batch.maxTimestamp());
        node.put("producer_id", batch.producerId()).put("producer_epoch", batch.producerEpoch());
        node.put("base_sequence", batch.baseSequence()).put("last_sequence", batch.lastSequence());
        node.put("is_transactional", batch.isTransactional()).put("is_control", batch.isControlBatch());
        node.put("partition_leader_epoch", batch.partitionLeaderEpoch()).put("count", batch.countOrNull());
        OptionalLong horizon = batch.deleteHorizonMs();
        node.put("delete_horizon_ms", horizon.isPresent() ? (Long) horizon.getAsLong() : null);
        if (batch instanceof DefaultRecordBatch)
            node.put("base_timestamp", ((DefaultRecordBatch) batch).baseTimestamp());
        // Last, because they raise: the codec if it is unknown, and the base offset if a wrapper is damaged.
        node.put("codec", batch.compressionType().id).put("base_offset", batch.baseOffset());
    }

    private static ObjectNode record(RecordBatch batch, Record record) {
        ObjectNode node = JSON.createObjectNode();
        node.put("offset", record.offset()).put("timestamp", record.timestamp());
        node.put("timestamp_type", batch.timestampType().id);
        node.put("key", bytes(record.key())).put("value", bytes(record.value()));
        node.put("sequence", record.sequence()).put("size_in_bytes", record.sizeInBytes());
        ArrayNode headers = node.putArray("headers");
        for (Header header : record.headers())
            headers.addArray().add(header.key()).add(header.value());
        return node;
    }

    /** One batch. See kafka.py for the fields of a spec, and their defaults. */
    private static ByteBuffer build(JsonNode spec) throws java.io.IOException {
        if (spec.path("is_empty").asBoolean(false))
            return emptyBatch(spec);
        byte magic = (byte) spec.get("magic").asInt();
        ByteBufferOutputStream out = new ByteBufferOutputStream(512);
        MemoryRecordsBuilder builder = new MemoryRecordsBuilder(out, magic, compression(spec), timestampType(spec),
            spec.path("base_offset").asLong(0), spec.path("log_append_time").asLong(RecordBatch.NO_TIMESTAMP),
            spec.path("producer_id").asLong(RecordBatch.NO_PRODUCER_ID),
            (short) spec.path("producer_epoch").asInt(RecordBatch.NO_PRODUCER_EPOCH),
            spec.path("base_sequence").asInt(RecordBatch.NO_SEQUENCE),
            spec.path("is_transactional").asBoolean(false), spec.path("is_control").asBoolean(false),
            spec.path("partition_leader_epoch").asInt(RecordBatch.NO_PARTITION_LEADER_EPOCH), Integer.MAX_VALUE,
            spec.path("delete_horizon_ms").asLong(RecordBatch.NO_TIMESTAMP));
        for (JsonNode record : spec.withArray("records"))
            append(builder, spec, record);
        if (spec.hasNonNull("last_offset"))
            builder.overrideLastOffset(spec.get("last_offset").asLong());
        MemoryRecords records = builder.build();
        for (MutableRecordBatch batch : records.batches())
            stamp(batch, spec);
        return records.buffer();
    }

    private static void append(MemoryRecordsBuilder builder, JsonNode spec, JsonNode record) throws java.io.IOException {
        long timestamp = record.path("timestamp").asLong(RecordBatch.NO_TIMESTAMP);
        if (record.hasNonNull("marker")) {
            ControlRecordType type = ControlRecordType.valueOf(record.get("marker").asText());
            EndTransactionMarker marker = new EndTransactionMarker(type, record.path("coordinator_epoch").asInt(0));
            if (!record.hasNonNull("offset")) {
                builder.appendEndTxnMarker(timestamp, marker);
                return;
            }
            ByteBuffer key = ByteBuffer.allocate(4);
            type.recordKey().writeTo(key);
            key.flip();
            builder.appendControlRecordWithOffset(record.get("offset").asLong(), new SimpleRecord(timestamp, key, marker.serializeValue()));
            return;
        }
        SimpleRecord simple = new SimpleRecord(timestamp, nullableBytes(record.path("key")),
            nullableBytes(record.path("value")), headers(record));
        builder.appendWithOffset(record.get("offset").asLong(), simple);
    }

    private static Header[] headers(JsonNode record) throws java.io.IOException {
        Header[] headers = new Header[record.path("headers").size()];
        for (int i = 0; i < headers.length; i++) {
            JsonNode header = record.get("headers").get(i);
            headers[i] = new RecordHeader(header.get(0).asText(), nullableBytes(header.get(1)));
        }
        return headers;
    }

    /** A producer's batch, and the batches that the producer splits it into. */
    private static void split(JsonNode spec, ObjectNode answer) throws java.io.IOException {
        TopicPartition partition = new TopicPartition("split", 0);
        CompressionRatioEstimator.resetEstimation(partition.topic());
        ProducerBatch batch = new ProducerBatch(partition, MemoryRecords.builder(ByteBuffer.allocate(1 << 22),
            (byte) spec.get("magic").asInt(), compression(spec), TimestampType.CREATE_TIME, 0L), 0L);
        for (JsonNode record : spec.withArray("records"))
            batch.tryAppend(record.path("timestamp").asLong(RecordBatch.NO_TIMESTAMP),
                nullableBytes(record.path("key")), nullableBytes(record.path("value")), headers(record), null, 0L);
        if (spec.path("producer_id").asLong(RecordBatch.NO_PRODUCER_ID) >= 0)
            batch.setProducerState(new ProducerIdAndEpoch(spec.get("producer_id").asLong(),
                (short) spec.get("producer_epoch").asInt()), spec.get("base_sequence").asInt(),
                spec.path("is_transactional").asBoolean(false));
        batch.close();
        answer.put("bytes", bytes(batch.records().buffer()));
        CompressionRatioEstimator.setEstimation(partition.topic(), CompressionType.forId(spec.path("codec").asInt(0)),
            (float) spec.get("estimated_ratio").asDouble());
        ArrayNode parts = answer.putArray("parts");
        for (ProducerBatch part : batch.split(spec.get("split_batch_size").asInt())) {
            part.close();
            parts.add(bytes(part.records().buffer()));
        }
    }

    /** Write the time and the offsets into a batch, as a broker does when it appends it. */
    private static void stamp(MutableRecordBatch batch, JsonNode spec) {
        if (spec.hasNonNull("stamp_log_append_time"))
            batch.setMaxTimestamp(TimestampType.LOG_APPEND_TIME, spec.get("stamp_log_append_time").asLong());
        if (spec.hasNonNull("stamp_last_offset"))
            batch.setLastOffset(spec.get("stamp_last_offset").asLong());
    }

    private static ByteBuffer emptyBatch(JsonNode spec) {
        ByteBuffer buffer = ByteBuffer.allocate(DefaultRecordBatch.RECORD_BATCH_OVERHEAD);
        DefaultRecordBatch.writeEmptyHeader(buffer, RecordBatch.MAGIC_VALUE_V2,
            spec.path("producer_id").asLong(RecordBatch.NO_PRODUCER_ID),
            (short) spec.path("producer_epoch").asInt(RecordBatch.NO_PRODUCER_EPOCH),
            spec.path("base_sequence").asInt(RecordBatch.NO_SEQUENCE), spec.path("base_offset").asLong(0),
            spec.get("last_offset").asLong(),
            spec.path("partition_leader_epoch").asInt(RecordBatch.NO_PARTITION_LEADER_EPOCH), timestampType(spec),
            spec.path("log_append_time").asLong(RecordBatch.NO_TIMESTAMP),
            spec.path("is_transactional").asBoolean(false), spec.path("is_control").asBoolean(false));
        buffer.flip();
        return buffer;
    }

    private static Compression compression(JsonNode spec) {
        return Compression.of(CompressionType.forId(spec.path("codec").asInt(0))).build();
    }

    private static TimestampType timestampType(JsonNode spec) {
        switch (spec.path("timestamp_type").asInt(0)) {
            case -1: return TimestampType.NO_TIMESTAMP_TYPE;
            case 0: return TimestampType.CREATE_TIME;
            default: return TimestampType.LOG_APPEND_TIME;
        }
    }

    private static byte[] nullableBytes(JsonNode node) throws java.io.IOException {
        return node.isTextual() ? node.binaryValue() : null;
    }

    private static byte[] bytes(ByteBuffer buffer) {
        return buffer == null ? null : Utils.toArray(buffer.duplicate());
    }
}
