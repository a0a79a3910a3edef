package command

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// build describes how this program was built.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Protocol uint32 `json:"protocol"`
	CUDA     bool   `json:"cuda"`
}

func newVersionCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "version",
		Short:   "Print the version and build of this program",
		Example: "  sharedtensor version\n  sharedtensor version --json",
		Args:    cli.Exactly(),
	}
	asJSON := cli.JSONFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		b := readBuild()
		if *asJSON {
			return term.PrintJSON(c.OutOrStdout(), b)
		}
		_, err := fmt.Fprintln(c.OutOrStdout(), b)
		return err
	}
	return c
}

// String returns the description as one line.
func (b build) String() string {
	text := "sharedtensor " + b.Version
	if b.Revision != "" {
		text += " (" + b.Revision[:min(12, len(b.Revision))]
		if b.Modified {
			text += ", modified"
		}
		text += ")"
	}
	with := "without CUDA"
	if b.CUDA {
		with = "with CUDA"
	}
	return fmt.Sprintf("%s, protocol %d, %s, %s %s", text, b.Protocol, with, b.Go, b.Platform)
}

// readBuild reads the build information of this program.
func readBuild() build {
	b := build{
		Version: endpoint.Version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Protocol: message.Protocol, CUDA: cli.BuiltWithCUDA,
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}
