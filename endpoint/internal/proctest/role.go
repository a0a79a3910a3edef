//go:build unix

// Package proctest contains helpers for the tests of endpoint and the packages below it: child processes with typed
// commands, waiting, sockets, and counts of open resources.
//
// A child is the test binary, started again in a role. A [Role] has a state, which the child creates once, and
// commands. Each command is an [Op] with an argument type and a result type:
//
//	var owner = proctest.NewRole("owner", nil, openOwner)
//
//	var publish = proctest.NewOp(owner, "publish", func(o *ownerState, name string) (uint64, error) {
//		return o.publish(name)
//	})
//
//	func TestMain(m *testing.M) { proctest.Main(m) }
//
//	func TestReader(t *testing.T) {
//		o := owner.Start(t)
//		require.EqualValues(t, 1, publish.Must(o, "model"))
//		o.Kill()
//	}
//
// Roles and commands are package variables because they must exist before TestMain runs.
package proctest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"
)

// roleVariable is the environment variable with a child's role.
const roleVariable = "PROCTEST_ROLE"

// maxLine is the maximum size in bytes of a command or an answer.
const maxLine = 16 << 20

// roles holds the main functions of children.
var roles = map[string]func(in io.Reader, out io.Writer) error{}

// HasRole reports whether this process runs a role instead of the tests.
func HasRole() bool { return os.Getenv(roleVariable) != "" }

// Main runs the role of this process, or the tests. Call it from TestMain. It does not return.
func Main(m *testing.M) {
	name := os.Getenv(roleVariable)
	if name == "" {
		os.Exit(m.Run())
	}
	run, ok := roles[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "this test binary has no role %q\n", name)
		os.Exit(2)
	}
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Role is a set of commands that a child process runs. S is the state of the process.
type Role[S any] struct {
	name      string
	sentinels map[string]error
	open      func() (*S, error)
	ops       map[string]func(s *S, in json.RawMessage) (any, error)
}

// NewRole registers a role. sentinels are the errors, by name, that are recognized in both processes: if the error of a
// command matches one of them in the child, the [Error] in the test does too. open creates the state when a child
// starts; an error ends the child.
func NewRole[S any](name string, sentinels map[string]error, open func() (*S, error)) *Role[S] {
	if _, ok := roles[name]; ok {
		panic("proctest: role " + name + " is registered twice")
	}
	r := &Role[S]{name: name, sentinels: sentinels, open: open, ops: map[string]func(*S, json.RawMessage) (any, error){}}
	roles[name] = r.run
	return r
}

// command and answer are the messages on a child's standard input and output, one per line.
type (
	command struct {
		Op string          `json:"op"`
		In json.RawMessage `json:"in"`
	}
	answer struct {
		Out   json.RawMessage `json:"out,omitempty"`
		Error *Error          `json:"error,omitempty"`
	}
)

// run is the main function of a child: it answers commands until its standard input ends.
func (r *Role[S]) run(in io.Reader, out io.Writer) error {
	state, err := r.open()
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	answers := json.NewEncoder(out)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return err
		}
		a, err := r.answer(state, c)
		if err != nil {
			return err
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
	return lines.Err()
}

// answer runs a command. A returned error is one of the test binary, not of the tested code.
func (r *Role[S]) answer(state *S, c command) (answer, error) {
	do, ok := r.ops[c.Op]
	if !ok {
		return answer{}, fmt.Errorf("role %s has no command %q", r.name, c.Op)
	}
	var a answer
	value, err := do(state, c.In)
	if err != nil {
		a.Error = &Error{Text: err.Error()}
		for name, sentinel := range r.sentinels {
			if errors.Is(err, sentinel) {
				a.Error.Names = append(a.Error.Names, name)
			}
		}
		slices.Sort(a.Error.Names)
	}
	a.Out, err = json.Marshal(value)
	return a, err
}

// Error is the error of a command.
type Error struct {
	// Text is the error's text in the child.
	Text string `json:"text"`
	// Names are the names of the sentinels that the error matched in the child, sorted.
	Names []string `json:"names,omitempty"`

	sentinels map[string]error
}

// Error returns the error's text in the child.
func (e *Error) Error() string { return e.Text }

// Is reports whether the error matched target, a sentinel of the role, in the child.
func (e *Error) Is(target error) bool {
	for _, name := range e.Names {
		if e.sentinels[name] == target {
			return true
		}
	}
	return false
}
