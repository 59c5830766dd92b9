package mq.tests;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Set;
import java.util.stream.Collectors;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.manipulation.Filter;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/**
 * Runs JUnit tests that standard input names: a line is a class and its tests, separated by spaces. Each test is
 * answered by a line of its name, its outcome (passes, fails), its milliseconds and, if it failed, the reason,
 * separated by tabs; each line of input by an empty one. What the tests print goes to standard error.
 */
public final class Runner {
    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            Set<String> tests = Arrays.stream(words).skip(1).collect(Collectors.toSet());
            JUnitCore core = new JUnitCore();
            core.addListener(new Reporter(answers, tests));
            core.run(Request.aClass(Class.forName(words[0])).filterWith(new Named(tests)));
            answers.println();
            answers.flush();
        }
        // Clients that a test left open have threads which keep the process alive.
        System.exit(0);
    }

    private static final class Named extends Filter {
        private final Set<String> tests;

        Named(Set<String> tests) {
            this.tests = tests;
        }

        @Override
        public boolean shouldRun(Description description) {
            return description.isSuite() || tests.contains(description.getMethodName());
        }

        @Override
        public String describe() {
            return "one of " + tests;
        }
    }

    private static final class Reporter extends RunListener {
        private final PrintStream answers;
        private final Set<String> tests;
        private Failure failure;
        private long start = System.nanoTime();

        Reporter(PrintStream answers, Set<String> tests) {
            this.answers = answers;
            this.tests = tests;
        }

        @Override
        public void testStarted(Description description) {
            failure = null;
            start = System.nanoTime();
        }

        @Override
        public void testFailure(Failure found) {
            if (found.getDescription().getMethodName() != null) {
                failure = found;
            } else {
                // Of the class as a whole: none of its tests ran.
                tests.forEach(test -> report(test, "fails", found));
            }
        }

        @Override
        public void testFinished(Description description) {
            report(description.getMethodName(), failure == null ? "passes" : "fails", failure);
        }

        private void report(String test, String outcome, Failure why) {
            String reason = why == null ? "" : String.valueOf(why.getException()).replaceAll("\\s+", " ");
            if (why != null) {
                System.err.println(test + ": " + why.getTrace());
            }
            long milliseconds = (System.nanoTime() - start) / 1_000_000;
            answers.println(test + "\t" + outcome + "\t" + milliseconds + "\t" + reason);
            answers.flush();
        }
    }
}
