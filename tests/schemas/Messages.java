import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.List;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.types.RawTaggedField;

/**
 * Kafka's generated messages behind standard input and output, a JSON object a line.
 *
 * In: "class" (with its package), "version", "json", and "tags" ({tag: base64}): unknown tagged fields of the message
 * and of each structure in it. Out: "bytes" (base64), and "json": what Kafka's converter writes of what Kafka reads in
 * these bytes. Where Kafka throws, the answer is "error".
 */
public final class Messages {
    private static final ObjectMapper JSON = new ObjectMapper();

    private Messages() { }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StringBuilder answers = new StringBuilder();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            answers.append(JSON.writeValueAsString(answer(JSON.readTree(line)))).append('\n');
        }
        System.out.write(answers.toString().getBytes(StandardCharsets.UTF_8));
        System.out.flush();
    }

    private static ObjectNode answer(JsonNode request) {
        ObjectNode answer = JSON.createObjectNode();
        try {
            Class<?> made = Class.forName(request.get("class").textValue());
            Class<?> converter = Class.forName(made.getName() + "JsonConverter");
            short version = request.get("version").shortValue();
            Message message = (Message) converter.getMethod("read", JsonNode.class, short.class)
                .invoke(null, request.get("json"), version);
            List<RawTaggedField> tags = new ArrayList<>();
            request.get("tags").fields().forEachRemaining(tag -> tags.add(new RawTaggedField(
                Integer.parseInt(tag.getKey()), Base64.getDecoder().decode(tag.getValue().textValue()))));
            if (!tags.isEmpty()) {
                addTags(message, tags);
            }
            ObjectSerializationCache cache = new ObjectSerializationCache();
            byte[] bytes = new byte[message.size(cache, version)];
            message.write(new ByteBufferAccessor(ByteBuffer.wrap(bytes)), cache, version);
            answer.put("bytes", Base64.getEncoder().encodeToString(bytes));
            Message read = (Message) made.getConstructor().newInstance();
            read.read(new ByteBufferAccessor(ByteBuffer.wrap(bytes)), version);
            answer.set("json", (JsonNode) converter.getMethod("write", made, short.class).invoke(null, read, version));
        } catch (ReflectiveOperationException | RuntimeException error) {
            Throwable cause = error.getCause() == null ? error : error.getCause();
            answer.put("error", cause.toString());
        }
        return answer;
    }

    private static void addTags(Message message, List<RawTaggedField> tags) throws IllegalAccessException {
        message.unknownTaggedFields().addAll(tags);
        for (Field field : message.getClass().getDeclaredFields()) {
            field.setAccessible(true);
            Object value = field.get(message);
            if (value instanceof Message) {
                addTags((Message) value, tags);
            } else if (value instanceof Collection && !field.getName().startsWith("_")) {
                for (Object element : (Collection<?>) value) {
                    if (element instanceof Message) {
                        addTags((Message) element, tags);
                    }
                }
            }
        }
    }
}
