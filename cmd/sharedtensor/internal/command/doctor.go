package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
)

// status is how a check came out.
type status uint8

const (
	statusOK status = iota
	statusWarn
	statusFail
)

// String is the status in capitals.
func (s status) String() string { return [...]string{"OK", "WARN", "FAIL"}[s] }

// MarshalJSON is the status in small letters.
func (s status) MarshalJSON() ([]byte, error) { return json.Marshal(strings.ToLower(s.String())) }

// finding is what one check of the doctor came to.
type finding struct {
	Check  string `json:"check"`
	Status status `json:"status"`
	// Detail is what was found, or the reason why it is not well.
	Detail string `json:"detail,omitempty"`
	// Advice is what to do about it.
	Advice string `json:"advice,omitempty"`
}

func ok(check, format string, args ...any) finding {
	return finding{Check: check, Detail: fmt.Sprintf(format, args...)}
}

func warn(check, advice, format string, args ...any) finding {
	return finding{Check: check, Status: statusWarn, Detail: fmt.Sprintf(format, args...), Advice: advice}
}

func fail(check, advice, format string, args ...any) finding {
	return finding{Check: check, Status: statusFail, Detail: fmt.Sprintf(format, args...), Advice: advice}
}

func newDoctorCommand() *cobra.Command {
	var asJSON bool
	var o *cli.OwnerFlags
	c := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Say what this host can share, how, and why not",
		Long: `Try what sharing needs on this host and say how it came out: OK, WARN for what works less well than it could,
FAIL for what does not work, each with the reason and what to do about it. Beside the socket that an owner would use,
a small model is published and attached for a moment; a running owner is asked for a sign of life and not
disturbed. The exit status is 1 where a check failed.`,
		Example: "  sharedtensor doctor\n  sharedtensor doctor --json",
		Args:    cli.Exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			findings := examine(c.Context(), o)
			if err := printFindings(c.OutOrStdout(), findings, asJSON); err != nil {
				return err
			}
			return verdict(findings)
		},
	}
	o = cli.AddOwnerFlags(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// examine runs every check.
func examine(ctx context.Context, o *cli.OwnerFlags) []finding {
	findings := examineHost()
	findings = append(findings, examineSocket(ctx, o)...)
	findings = append(findings, examineOwner(ctx, o)...)
	return append(findings, examineCUDA()...)
}

// printFindings prints a line for each, and the advice below it. Nothing is cut: the reason is what counts.
func printFindings(w io.Writer, findings []finding, asJSON bool) error {
	if asJSON {
		return term.PrintJSON(w, findings)
	}
	width := 0
	for _, f := range findings {
		width = max(width, len(f.Check))
	}
	var b strings.Builder
	for _, f := range findings {
		fmt.Fprintf(&b, "%-4s  %-*s  %s\n", f.Status, width, f.Check, term.Printable(cli.OneLine(f.Detail)))
		if f.Advice != "" {
			fmt.Fprintf(&b, "%*s-> %s\n", 4+2+width+2, "", term.Printable(cli.OneLine(f.Advice)))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// verdict is an error where a check failed.
func verdict(findings []finding) error {
	failed := 0
	for _, f := range findings {
		if f.Status == statusFail {
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %s failed", failed, term.Count(len(findings), "check"))
	}
	return nil
}
