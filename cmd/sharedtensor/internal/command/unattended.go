package command

import (
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/internal/logs"
)

// streams are the outputs of a command that runs unattended. Writing never blocks, and never ends the process.
type streams struct {
	stdout, stderr *logs.Writer
	terminal       io.Writer // standard error if it is a terminal, for progress bars; nil otherwise
	original       io.Writer // standard error
}

// unattended makes a command write to streams. The caller closes them.
func unattended(c *cobra.Command) *streams {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // a write without a reader then fails with EPIPE
	s := &streams{stdout: logs.NewWriter(c.OutOrStdout()), original: c.ErrOrStderr()}
	if term.IsTerminal(s.original) {
		s.terminal = s.original
		s.stderr = logs.NewWriter(overBar{s.original})
	} else {
		s.stderr = logs.NewWriter(s.original)
	}
	c.SetOut(s.stdout)
	c.SetErr(s.stderr)
	return s
}

// progress returns the writer for progress.
func (s *streams) progress() io.Writer {
	if s.terminal != nil {
		return s.terminal
	}
	return s.stderr
}

// lost returns the number of lines that could not be written.
func (s *streams) lost() uint64 { return s.stdout.Lost() + s.stderr.Lost() }

// close writes the last lines, if they are read.
func (s *streams) close() {
	s.stdout.Close(lastLines)
	s.stderr.Close(lastLines)
}
