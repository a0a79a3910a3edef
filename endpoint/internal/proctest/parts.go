//go:build unix

package proctest

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// partVariable is set in processes that run a part of the tests.
const partVariable = "PROCTEST_PART"

// MainInParts is Main for packages with many tests that wait. It divides the tests among processes and runs them at the
// same time. Tests that count the files, mappings and goroutines of their process cannot be parallel within it. The
// output and the list of files that the go command uses to cache the result are those of one process. All tests run in
// this process if some are selected by name, or if the run writes a profile or coverage.
func MainInParts(m *testing.M, processes int) {
	if os.Getenv(roleVariable) != "" || os.Getenv(partVariable) != "" {
		Main(m)
	}
	flag.Parse()
	for _, name := range []string{"run", "list", "bench", "fuzz", "coverprofile", "gocoverdir", "cpuprofile", "memprofile", "blockprofile", "mutexprofile", "trace"} {
		if f := flag.Lookup("test." + name); f != nil && f.Value.String() != "" {
			Main(m)
		}
	}
	code, err := runParts(m, processes)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// runParts runs one part of the tests in this process and the others in new ones.
func runParts(m *testing.M, processes int) (code int, err error) {
	names, err := Tests()
	if err != nil {
		return 0, err
	}
	args := slices.Clip(os.Args[1:])
	if order := flag.Lookup("test.shuffle").Value; order.String() == "on" { // one seed repeats all parts
		if err := order.Set(strconv.FormatInt(time.Now().UnixNano(), 10)); err != nil {
			return 0, err
		}
		args = append(args, "-test.shuffle="+order.String())
	}
	logFile := flag.Lookup("test.testlogfile").Value.String()
	var others []*Part
	for i, share := range Shares(names, processes) {
		if i == 0 {
			if err := flag.Set("test.run", pattern(share)); err != nil {
				return 0, err
			}
			continue
		}
		log := logFile
		if log != "" {
			log = fmt.Sprintf("%s.%d", logFile, i)
		}
		p, err := StartPart(share, append(slices.Clip(args), "-test.testlogfile="+log))
		if err != nil {
			return 0, err
		}
		p.log = log
		others = append(others, p)
	}
	code = m.Run()
	for _, p := range others {
		out, err := p.Wait()
		if err != nil {
			code = 1
		}
		if err != nil || testing.Verbose() {
			fmt.Fprint(os.Stdout, string(out)) // like the output of this process
		}
		if err := appendLog(logFile, p.log); err != nil {
			return 0, err
		}
	}
	return code, nil
}

// appendLog appends the lines of a part's test log, except the first one, to the log of this process.
func appendLog(to, from string) error {
	if to == "" {
		return nil
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(to, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, lines, _ := bytes.Cut(text, []byte("\n"))
	_, err = f.Write(lines)
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

// Tests returns the names of the tests, examples and fuzz targets of this binary.
func Tests() ([]string, error) {
	out, err := exec.Command(os.Args[0], "-test.list=.").Output()
	if err != nil {
		return nil, fmt.Errorf("list the tests: %w", err)
	}
	var names []string
	for _, name := range strings.Fields(string(out)) {
		if !strings.HasPrefix(name, "Benchmark") {
			names = append(names, name)
		}
	}
	return names, nil
}

// Shares deals the names to n shares in turn.
func Shares(names []string, n int) [][]string {
	shares := make([][]string, n)
	for i, name := range names {
		shares[i%n] = append(shares[i%n], name)
	}
	return shares
}

func pattern(names []string) string { return "^(" + strings.Join(names, "|") + ")$" }

// Part is a process that runs some tests of this binary. While it runs, it occupies the same number of descriptors and
// goroutines of this process.
type Part struct {
	cmd *exec.Cmd
	out *os.File
	log string
}

// StartPart starts a process that runs the named tests, with more arguments and environment variables.
func StartPart(names, args []string, env ...string) (*Part, error) {
	out, err := os.CreateTemp("", "part")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(out.Name()); err != nil {
		out.Close()
		return nil, err
	}
	p := &Part{cmd: exec.Command(os.Args[0], append(slices.Clip(args), "-test.run="+pattern(names))...), out: out}
	p.cmd.Env = append(append(os.Environ(), partVariable+"=1"), env...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	if err := p.cmd.Start(); err != nil {
		out.Close()
		return nil, err
	}
	return p, nil
}

// Wait returns the output of the tests without the verdict of the process, and an error if one failed.
func (p *Part) Wait() ([]byte, error) {
	defer p.out.Close()
	failed := p.cmd.Wait()
	if _, err := p.out.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	out, err := io.ReadAll(p.out)
	if err != nil {
		return nil, err
	}
	var kept bytes.Buffer
	for line := range bytes.Lines(out) {
		if verdict := string(bytes.Trim(line, "\x16\n")); verdict != "PASS" && verdict != "FAIL" {
			kept.Write(line)
		}
	}
	return kept.Bytes(), failed
}
