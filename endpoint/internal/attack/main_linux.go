// Command attack measures what hostile clients can make an owner hold. For each attack it starts an owner, a client
// that behaves (it pings all the time, and again and again comes anew, lists and publishes) and an attacker, each a
// process, and reads what the owner has before, at its peak, and after the attacker has gone:
//
//	go run ./endpoint/internal/attack
//	go run ./endpoint/internal/attack -only unread,labels -json
//
// The attacker speaks the protocol through frames of its own making, so it can attack the owner of another version of
// this module. The owner is this program too, and uses nothing that early versions lack: to compare two versions, copy
// this folder into a checkout of the other one, build it there (where messages are part of package wire, say wire for
// message), and name what was built:
//
//	go run ./endpoint/internal/attack -owner /tmp/attack-of-before
//
// The exit status is 1 where an attack could not be measured.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	if os.Getenv(roleEnv) != "" {
		os.Exit(childMain())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout))
}

// run is the program. It returns the exit status.
func run(ctx context.Context, args []string, out io.Writer) int {
	p := plan{Scale: 1, Hold: 5 * time.Second}
	flags := flag.NewFlagSet("attack", flag.ContinueOnError)
	flags.SetOutput(out)
	only := flags.String("only", "", "which attacks, by name, with commas between them; all where it is empty")
	asJSON := flags.Bool("json", false, "print JSON instead of a table")
	flags.StringVar(&p.Owner, "owner", "", "the owner's program, where it is another build of this one")
	flags.Float64Var(&p.Scale, "scale", p.Scale, "how much of each attack, above 0 and at most 1")
	flags.DurationVar(&p.Hold, "hold", p.Hold, "how long the attacker holds on")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	chosen, err := choose(*only)
	if err != nil || flags.NArg() > 0 || p.Scale <= 0 || p.Scale > 1 || p.Hold <= 0 {
		fmt.Fprintln(out, "attack takes no arguments, and wants names of attacks, a scale above 0 and at most 1, and a time above 0:", err)
		return 2
	}
	status := 0
	var rows []measured
	for _, a := range chosen {
		if ctx.Err() != nil { // what was measured is printed all the same
			status = 1
			break
		}
		fmt.Fprintln(os.Stderr, "attack:", a.name, "-", a.what)
		row, err := p.measure(ctx, a)
		if err != nil {
			fmt.Fprintf(os.Stderr, "attack: FAILED: %s: %v\n", a.name, err)
			row.Failure = err.Error()
			status = 1
		}
		rows = append(rows, row)
	}
	if *asJSON {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		if enc.Encode(rows) != nil {
			return 1
		}
		return status
	}
	printTable(out, rows)
	return status
}

// choose finds attacks by their names.
func choose(names string) ([]attack, error) {
	if names == "" {
		return attacks, nil
	}
	var chosen []attack
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(attacks, func(a attack) bool { return a.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no attack %q", name)
		}
		chosen = append(chosen, attacks[i])
	}
	return chosen, nil
}

// plan says how attacks are measured.
type plan struct {
	Owner  string // its program; this one where it is empty
	Scale  float64
	Hold   time.Duration
	Memory int64 // what the owner's device says that there is; all where it is 0
}
