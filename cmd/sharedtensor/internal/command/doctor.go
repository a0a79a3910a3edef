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

// status is the result of a check.
type status uint8

const (
	statusOK status = iota
	statusWarn
	statusFail
)

// String returns the status in upper case.
func (s status) String() string { return [...]string{"OK", "WARN", "FAIL"}[s] }

// MarshalJSON returns the status in lower case.
func (s status) MarshalJSON() ([]byte, error) { return json.Marshal(strings.ToLower(s.String())) }

// finding is the outcome of one check.
type finding struct {
	Check  string `json:"check"`
	Status status `json:"status"`
	// Detail describes the result, or the reason of a problem.
	Detail string `json:"detail,omitempty"`
	// Advice describes how to solve the problem.
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
		Short: "Check what this host can share",
		Long: `Check the requirements for sharing on this host. Each check is OK, WARN (works with limitations) or FAIL (does not work),
with the reason and advice. The command publishes and attaches a small model on a temporary socket beside the owner's. It
pings a running owner and does not disturb it. The exit status is 1 if a check fails.`,
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
	findings = append(findings, examineDeployment(o)...)
	findings = append(findings, examineOwner(ctx, o)...)
	findings = append(findings, examineCUDA()...)
	findings = append(findings, examineCompilers()...)
	return append(findings, examineGPUs(ctx)...)
}

// printFindings prints a line for each finding, with the advice below. Lines are not cut, because the reason matters.
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

// verdict returns an error if a check failed.
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
