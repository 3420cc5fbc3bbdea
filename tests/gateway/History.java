// What a release of Kafka's clients knows, by reflection, as lines of tab-separated words:
//
//     error CODE NAME RETRIABLE
//     api KEY NEWEST-VERSION
//
// Run with a release on the class path. The Scala clients, the only ones before 0.8.2, do not tell which errors are
// retriable, and of their requests only the keys are told.
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;

public class History {
    public static void main(String[] arguments) throws Exception {
        try {
            Class.forName("org.apache.kafka.common.protocol.Errors");
        } catch (ClassNotFoundException absent) {
            tellScala();
            return;
        }
        tellErrors();
        tellVersions();
    }

    private static void tellErrors() throws Exception {
        Class<?> errors = Class.forName("org.apache.kafka.common.protocol.Errors");
        Class<?> retriable = Class.forName("org.apache.kafka.common.errors.RetriableException");
        for (Object error : errors.getEnumConstants()) {
            Object exception = errors.getMethod("exception").invoke(error);
            System.out.println("error\t" + errors.getMethod("code").invoke(error) + "\t" + error + "\t"
                + retriable.isInstance(exception));
        }
    }

    private static void tellVersions() throws Exception {
        Class<?> keys = Class.forName("org.apache.kafka.common.protocol.ApiKeys");
        for (Object key : keys.getEnumConstants()) {
            int id = ((Number) keys.getField("id").get(key)).intValue();
            System.out.println("api\t" + id + "\t" + newest(keys, key, id));
        }
    }

    private static int newest(Class<?> keys, Object key, int id) throws Exception {
        try {
            return ((Number) keys.getMethod("latestVersion").invoke(key)).intValue();
        } catch (NoSuchMethodException before11) {
            Class<?> protocol = Class.forName("org.apache.kafka.common.protocol.Protocol");
            var versions = protocol.getDeclaredField("CURR_VERSION");
            versions.setAccessible(true);
            return ((short[]) versions.get(null))[id];
        }
    }

    private static void tellScala() throws Exception {
        tellConstants("kafka.common.ErrorMapping", "NoError|.*Code", "error\t%d\t%s\tfalse%n");
        tellConstants("kafka.api.RequestKeys", ".*Key", "api\t%d\t0%n");
    }

    private static void tellConstants(String name, String pattern, String line) throws Exception {
        for (Method method : Class.forName(name).getMethods()) {
            if (Modifier.isStatic(method.getModifiers()) && method.getParameterCount() == 0
                && method.getName().matches(pattern)) {
                System.out.printf(line, method.invoke(null), method.getName());
            }
        }
    }
}
