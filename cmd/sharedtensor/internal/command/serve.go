package command

import (
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

const serveHelp = `Load models into shared memory and own them: every process of this host that may connect to the socket
can attach them by name and use them in place. A PATH is a .safetensors file, a
model.safetensors.index.json, a directory that holds either, or hf:ORG/MODEL[@REVISION] for a model in the
local cache of the Hugging Face hub, from which nothing is downloaded. Without any NAME=PATH the owner begins
empty, for others to publish into.

The socket is bound before anything is loaded, so a second owner fails at once and does not disturb the first, and clients
are answered from then on: each model can be attached as soon as it is there, and ls and inspect show how far the
others are. A model that cannot be loaded is shown with the reason, and the others are served; if none can be
loaded the owner ends. The line "serving ..." is printed when all have been loaded.

Signals:
  SIGTERM, SIGINT  stop: no new clients, requests in flight end within --grace;
                   a second one ends at once
  SIGHUP           load every NAME=PATH again, one after the other, and publish
                   each as a new version; readers of the old one keep it, so
                   both are in memory for a while. What cannot be loaded stays
                   as it was; the log says which have changed

As a systemd service use Type=notify: the manager is told when all models have been loaded, and asked for more time
until then. A socket unit with one ListenStream=PATH hands the socket over; --socket is not needed then.`

// serveFlags are the flags of the command serve.
type serveFlags struct {
	socket, device string
	retain         int
	uids           []uint
	offers         bool
	grace          time.Duration
	level          string
	pythonTies     bool
	digests        bool
}

func newServeCommand() *cobra.Command {
	var o serveFlags
	c := &cobra.Command{
		Use:   "serve [flags] NAME=PATH...",
		Short: "Load models and own them, for all processes of this host",
		Long:  serveHelp,
		Example: `  sharedtensor serve llm=model.safetensors
  sharedtensor serve llm=./llama-3 vad=silero_vad_16k.safetensors --socket /run/models/owner.sock
  sharedtensor serve --device cuda:0 llm=./llama-3
  sharedtensor serve gpt2=hf:openai-community/gpt2`,
		ValidArgsFunction: completeModels,
		RunE: func(c *cobra.Command, words []string) error {
			models, err := parseModels(c, words, o.pythonTies)
			if err != nil {
				return err
			}
			return serve(c, o, models)
		},
	}
	f := c.Flags()
	f.StringVar(&o.socket, "socket", "", "path of the socket to listen on (default: see sharedtensor --help)")
	f.IntVar(&o.retain, "retain", 0, "how many superseded versions of each name to keep though nobody reads them")
	f.UintSliceVar(&o.uids, "allow-uid", nil, "also let processes of this user id connect, which may publish too")
	f.BoolVar(&o.offers, "offers", false, "let processes offer functions that they run themselves for others to call (workers)")
	f.DurationVar(&o.grace, "grace", 10*time.Second, "how long requests in flight may take to end when the owner stops")
	f.StringVar(&o.level, "log-level", "info", "what to log on standard error: debug, info, warn or error")
	cli.DeviceFlag(c, &o.device)
	pythonTiesFlag(c, &o.pythonTies)
	f.BoolVar(&o.digests, "digests", false, "compute the SHA-256 of each tensor of the models in the background")
	_ = c.RegisterFlagCompletionFunc("log-level", cobra.FixedCompletions([]string{"debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// permitted is who may offer endpoints.
func (o *serveFlags) permitted() func(endpoint.Peer, []string) error {
	if o.offers {
		return endpoint.AllowOffers
	}
	return nil
}

// check refuses flags that make no sense.
func (o *serveFlags) check(c *cobra.Command) (*slog.Logger, []uint32, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.level)); err != nil {
		return nil, nil, cli.Usagef(c, "--log-level %q: use debug, info, warn or error", o.level)
	}
	if o.retain < 0 {
		return nil, nil, cli.Usagef(c, "--retain %d: it must be 0 or more", o.retain)
	}
	if o.grace < 0 {
		return nil, nil, cli.Usagef(c, "--grace %v: it must not be negative", o.grace)
	}
	uids, err := cli.UserIDs("--allow-uid", o.uids)
	if err != nil {
		return nil, nil, cli.UsageError(c, err)
	}
	return slog.New(slog.NewTextHandler(logWriter(c.ErrOrStderr()), &slog.HandlerOptions{Level: level})), uids, nil
}

// logWriter is where the log goes: on a terminal over the progress bar, which is drawn again below it.
func logWriter(w io.Writer) io.Writer {
	if !term.IsTerminal(w) {
		return w
	}
	return overBar{w}
}

// overBar clears the line of the terminal before each write.
type overBar struct{ w io.Writer }

func (o overBar) Write(line []byte) (int, error) {
	n, err := o.w.Write(append([]byte(term.ClearLine), line...))
	return max(n-len(term.ClearLine), 0), err
}

// servingLine says what is served where.
func servingLine(models int, bytes int64, socket string, pid int) string {
	what := "nothing yet"
	if models > 0 {
		what = fmt.Sprintf("%s, %s,", term.Count(models, "model"), term.FormatBytes(bytes))
	}
	return fmt.Sprintf("serving %s on %s, pid %d", what, socket, pid)
}
