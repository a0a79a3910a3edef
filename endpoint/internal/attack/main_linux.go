// Command attack measures how much memory hostile clients can make an owner use. For each attack it starts three
// processes: an owner, an honest client and an attacker. The honest client pings all the time and repeatedly connects,
// lists and publishes. The command measures the owner before the attack, at its peak, and after the attacker has left:
//
//	go run ./endpoint/internal/attack
//	go run ./endpoint/internal/attack -only unread,labels -json
//
// The attacker encodes its own frames, so it can attack owners of other versions of this module. The owner is this
// program too, and uses only functions that early versions have. To compare two versions, copy this folder into a
// checkout of the other version, build it there (if messages are part of package wire, replace message by wire), and
// pass the executable:
//
//	go run ./endpoint/internal/attack -owner /tmp/attack-of-before
//
// The exit status is 1 if an attack could not be measured.
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

// run runs the program and returns the exit status.
func run(ctx context.Context, args []string, out io.Writer) int {
	p := plan{Scale: 1, Hold: 5 * time.Second}
	flags := flag.NewFlagSet("attack", flag.ContinueOnError)
	flags.SetOutput(out)
	only := flags.String("only", "", "comma-separated names of attacks; all if empty")
	asJSON := flags.Bool("json", false, "print JSON instead of a table")
	flags.StringVar(&p.Owner, "owner", "", "executable of the owner, a build of this program from another version")
	flags.Float64Var(&p.Scale, "scale", p.Scale, "scale of each attack, above 0 and at most 1")
	flags.DurationVar(&p.Hold, "hold", p.Hold, "time for which the attacker holds its resources")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	chosen, err := choose(*only)
	if err != nil || flags.NArg() > 0 || p.Scale <= 0 || p.Scale > 1 || p.Hold <= 0 {
		fmt.Fprintln(out, "attack takes no arguments and requires valid names of attacks, a scale above 0 and at most 1, and a positive time:", err)
		return 2
	}
	status := 0
	var rows []measured
	for _, a := range chosen {
		if ctx.Err() != nil { // the completed measurements are printed
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

// choose returns the attacks with these names.
func choose(names string) ([]attack, error) {
	if names == "" {
		return attacks, nil
	}
	var chosen []attack
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(attacks, func(a attack) bool { return a.name == name })
		if i < 0 {
			return nil, fmt.Errorf("unknown attack %q", name)
		}
		chosen = append(chosen, attacks[i])
	}
	return chosen, nil
}

// plan is the configuration of a run.
type plan struct {
	Owner  string // executable of the owner; "" for this one
	Scale  float64
	Hold   time.Duration
	Memory int64 // memory size that the owner's device reports; 0 for the machine's
}
