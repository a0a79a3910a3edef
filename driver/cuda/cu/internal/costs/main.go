// Command costs compares the cost of a call into an empty C function: by package cu with its trampoline, by package cu with
// purego, and by cgo. It prints the minimum of many short rounds, in which the three take turns.
//
//	go run -C driver/cuda/cu/internal/costs . [-rounds 300]
//
// It is a separate module because it needs cgo and a C compiler. It starts itself, built with the tag cudapurego, to measure
// the path by purego. -library and -purego name a library and a program that are built already, and -exec a command that is put
// before that program, such as an emulator. The check costs of driver/cuda/testdata/verify uses them for arm64.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// child, in the arguments, is followed by the library: measure a round for each line of the standard input.
const child = "round"

func main() {
	rounds := flag.Int("rounds", 300, "number of rounds")
	var b built
	flag.StringVar(&b.library, "library", "", "`file` of the library, built from empty.c; the default is to build it")
	flag.StringVar(&b.purego, "purego", "", "this `program`, built with the tag cudapurego; the default is to build it")
	flag.StringVar(&b.exec, "exec", "", "`command` that starts the program of -purego")
	flag.Parse()
	if err := run(os.Stdout, *rounds, b, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "costs:", err)
		os.Exit(1)
	}
}

// built names the parts that the measurement needs besides this program.
type built struct{ library, purego, exec string }

func run(out io.Writer, rounds int, b built, args []string) error {
	if len(args) == 2 && args[0] == child {
		return serveRounds(args[1])
	}
	if b.library != "" && b.purego != "" {
		return measure(out, rounds, b)
	}
	dir, err := os.MkdirTemp("", "costs")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b = built{library: filepath.Join(dir, "empty.so"), purego: filepath.Join(dir, "purego")}
	for _, command := range [][]string{
		{"cc", "-shared", "-fPIC", "-O2", "-o", b.library, "empty.c"},
		{"go", "build", "-tags", "cudapurego", "-o", b.purego, "."},
	} {
		if text, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err, text)
		}
	}
	return measure(out, rounds, b)
}

func measure(out io.Writer, rounds int, b built) error {
	other, err := startChild(b)
	if err != nil {
		return err
	}
	defer other.stop()
	table, err := compare(b.library, other, rounds)
	if err != nil {
		return err
	}
	print(out, table, rounds)
	return nil
}

// costs are the minimum nanoseconds of a call, by row.
type costs struct{ trampoline, purego, cgo []float64 }

func compare(library string, other *process, rounds int) (costs, error) {
	inCgo, err := cgoCalls(library)
	if err != nil {
		return costs{}, err
	}
	inCu, err := cuCalls(library)
	if err != nil {
		return costs{}, err
	}
	table := costs{make([]float64, len(rows)), make([]float64, len(rows)), make([]float64, len(rows))}
	for range rounds {
		for i := range rows {
			if err := lower(table.cgo, i, inCgo[i]); err != nil {
				return costs{}, err
			}
			if err := lower(table.trampoline, i, inCu[i]); err != nil {
				return costs{}, err
			}
		}
		if err := other.round(table.purego); err != nil {
			return costs{}, err
		}
	}
	return table, nil
}

// callsPerRound is long enough for the clock and short enough to finish without an interruption.
const callsPerRound = 2000

// lower measures a round of calls and lowers best[i] to its cost.
func lower[R int32 | cu.Result](best []float64, i int, call func() R) error {
	if r := call(); r != 0 {
		return fmt.Errorf("%s: result %d, arguments did not arrive", rows[i].symbol, r)
	}
	begin := time.Now()
	for range callsPerRound {
		call()
	}
	ns := float64(time.Since(begin)) / callsPerRound
	if best[i] == 0 || ns < best[i] {
		best[i] = ns
	}
	return nil
}

// serveRounds measures a round of package cu for each line of the standard input and prints its costs.
func serveRounds(library string) error {
	calls, err := cuCalls(library)
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		best := make([]float64, len(rows))
		for i := range rows {
			if err := lower(best, i, calls[i]); err != nil {
				return err
			}
			fmt.Print(best[i], " ")
		}
		fmt.Println()
	}
	return lines.Err()
}

// process is a program that measures a round for each line that it receives.
type process struct {
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
}

func startChild(b built) (*process, error) {
	words := append(strings.Fields(b.exec), b.purego, child, b.library)
	p := &process{command: exec.Command(words[0], words[1:]...)}
	p.command.Stderr = os.Stderr
	in, err := p.command.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.in, p.out = in, bufio.NewReader(out)
	return p, p.command.Start()
}

func (p *process) round(best []float64) error {
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		return err
	}
	line, err := p.out.ReadString('\n')
	if err != nil {
		return fmt.Errorf("the process that uses purego: %w", err)
	}
	for i, field := range strings.Fields(line) {
		ns, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return err
		}
		if best[i] == 0 || ns < best[i] {
			best[i] = ns
		}
	}
	return nil
}

func (p *process) stop() {
	p.in.Close()
	_ = p.command.Wait() // best effort: the measurement is over
}

func print(out io.Writer, t costs, rounds int) {
	fmt.Fprintf(out, "ns for a call into an empty C function, minimum of %d rounds of %d calls, %s %s\n\n", rounds, callsPerRound, runtime.Version(), runtime.GOARCH)
	fmt.Fprintf(out, "%-20s %10s %10s %10s %12s %8s %12s\n", "call", "cgo", "trampoline", "purego", "tramp./cgo", "target", "purego/cgo")
	for i, row := range rows {
		ratio, verdict := t.trampoline[i]/t.cgo[i], ""
		if ratio > row.target() {
			verdict = "  over the target"
		}
		fmt.Fprintf(out, "%-20s %10.1f %10.1f %10.1f %12.2f %8.2f %12.2f%s\n", row.name, t.cgo[i], t.trampoline[i], t.purego[i],
			ratio, row.target(), t.purego[i]/t.cgo[i], verdict)
	}
	fmt.Fprintln(out, "\nThe rows with a context compare setting it, the call and restoring the previous one with one call of cgo.")
}
