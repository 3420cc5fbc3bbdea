import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.google.protobuf.DescriptorProtos.FileDescriptorSet;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.Message;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.Serializer;

/**
 * Writes payloads with serializers. Standard input has a line a job: the class of a serializer, the format, the schema
 * in Base64, and settings as KEY=VALUE, with tabs between them. For each job, records follow as lines: the value in
 * hexadecimal, and headers as NAME=VALUE, with tabs between them; then a line "end".
 *
 * <p>A record has an id, from 1 to 3, and a name. The schema of Protobuf is a FileDescriptorSet, whose last file has
 * the message Order.
 */
public class Payloads {
    private static final List<String> NAMES = List.of("", "é", "x".repeat(300));

    public static void main(String[] arguments) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t");
            Map<String, Object> settings = new HashMap<>();
            for (int place = 3; place < parts.length; place++) {
                String[] setting = parts[place].split("=", 2);
                settings.put(setting[0], setting[1]);
            }
            try {
                write(parts[0], parts[1], Base64.getDecoder().decode(parts[2]), settings);
            } catch (Throwable error) {
                error.printStackTrace();
            }
            System.out.println("end");
        }
    }

    @SuppressWarnings("unchecked")
    private static void write(String name, String format, byte[] schema, Map<String, Object> settings)
            throws Exception {
        try (var serializer = (Serializer<Object>) Class.forName(name).getConstructor().newInstance()) {
            serializer.configure(settings, false);
            for (int id = 1; id <= NAMES.size(); id++) {
                Headers headers = new RecordHeaders();
                byte[] value = serializer.serialize("orders", headers, record(format, schema, id, NAMES.get(id - 1)));
                var fields = new ArrayList<String>(List.of(HexFormat.of().formatHex(value)));
                for (Header header : headers) {
                    fields.add(header.key() + "=" + HexFormat.of().formatHex(header.value()));
                }
                System.out.println(String.join("\t", fields));
            }
        }
    }

    private static Object record(String format, byte[] schema, int id, String name) throws Exception {
        switch (format) {
            case "avro":
                var record = new GenericData.Record(new Schema.Parser().parse(new String(schema)));
                record.put("id", (long) id);
                record.put("name", name);
                return record;
            case "json":
                return JsonNodeFactory.instance.objectNode().put("id", id).put("name", name);
            default:
                return message(schema, id, name);
        }
    }

    private static Message message(byte[] schema, int id, String name) throws Exception {
        var known = new ArrayList<FileDescriptor>();
        for (var file : FileDescriptorSet.parseFrom(schema).getFileList()) {
            known.add(FileDescriptor.buildFrom(file, known.toArray(FileDescriptor[]::new), true));
        }
        Descriptor type = known.get(known.size() - 1).findMessageTypeByName("Order");
        return DynamicMessage.newBuilder(type)
                .setField(type.findFieldByName("id"), (long) id)
                .setField(type.findFieldByName("name"), name)
                .build();
    }
}
