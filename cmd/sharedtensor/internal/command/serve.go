package command

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

const serveHelp = `Load models into shared memory and own them. Processes of this host that may connect to the socket attach them by name and
use them in place. A PATH is a .safetensors file, a model.safetensors.index.json, a .gguf file, a directory that contains one of
these, or hf:ORG/MODEL[@REVISION][:FILE] for a model in the local cache of the Hugging Face hub; nothing is downloaded.
Without NAME=PATH the owner starts empty, and other processes can publish models.

The owner binds the socket before it loads models. A second owner therefore fails at once without disturbing the first.
Clients are answered while models are loading: each model can be attached once it is loaded, and ls and inspect show the
progress of the others. If a model cannot be loaded, ls shows the reason and the other models are served. If no model can be
loaded, the owner exits. The line "serving ..." is printed when loading has ended.

Signals:
  SIGTERM, SIGINT  stop: refuse new clients, and let requests in flight complete
                   within --grace; a second signal exits immediately
  SIGHUP           load every NAME=PATH again, one after the other, and publish
                   each as a new version. Readers keep the old version, so both
                   are in memory for a while. A model that fails to load keeps
                   its version. The log lists the changes. Before that, the
                   policy file is read again; an invalid one is not used. The
                   file of --audit is opened again
  SIGUSR2          replace this process by a new one of the same program file
                   and arguments; sharedtensor upgrade sends it. Clients lose no
                   call. If the new process fails, this one continues

With --keep, published models survive the owner: a small process (sharedtensor keep), or with --keep=systemd the service
manager's descriptor store, holds their memory. --keep=dir:PATH needs neither: it copies each model into a directory, which
costs the memory or disk space of the copy and the time to copy it back. --keep=connect is for a keeper that others start, for
example in another container: the owner waits 5 s for it when it starts, and never starts one. The next owner on the same socket serves them again at once, with the same
names and version numbers, and readers keep their leases. A model that it cannot map, for example because a device is missing,
stays kept, and ls shows the reason. A NAME=PATH whose files have not changed is not loaded again.

With --place DEVICE, the owner copies a model to that device when a process requires it there (get --device, place,
AcquireOptions.Device), once for all processes. DEVICE=BYTES limits the copies, for example --place cuda:0=40GiB,keep=5m. A copy
stays for the time keep after its last reader has left. The one that is unused for the longest time makes room for
another. The flag can be repeated for more devices. Copies are not kept by --keep.

With --policy, a file decides which users and groups may list, acquire, publish and withdraw which names, and call and
offer which endpoints; sharedtensor config describes it. The socket then admits the users of the rules. Each change is
one line with msg=audit in the log, or in the file of --audit as JSON. Lines that cannot be written are reported in the log and
counted (sharedtensor_limit_refused_total, limit audit_lines); with --require-audit such a change is refused, and each change
has a second line with state=requested before it.

A reader of the log that stops or ends does not delay the owner: lines that it cannot write are dropped and counted (limit
log_lines).

As a systemd service use Type=notify: the owner reports that it is ready when loading has ended, and extends the start
timeout until then. With a socket unit with one ListenStream=PATH, --socket is not needed.`

// serveFlags holds the flags of the command serve.
type serveFlags struct {
	socket, device  string
	retain          retainFlags
	uids            []uint
	offers          bool
	grace, lockWait time.Duration
	level           string
	load            loadFlags
	digests         bool
	keep            string // keepProcess, keepConnect, keepSystemd, keepDir with a path, or empty
	policy          string // path of the policy file, or empty
	audit           string // path of the audit log, or empty for the log
	requireAudit    bool
	places          []string // values of --place
}

func newServeCommand() *cobra.Command {
	var o serveFlags
	c := &cobra.Command{
		Use:   "serve [flags] NAME=PATH...",
		Short: "Load models and share them with all processes of this host",
		Long:  serveHelp,
		Example: `  sharedtensor serve llm=model.safetensors
  sharedtensor serve llm=./llama-3 vad=silero_vad_16k.safetensors --socket /run/models/owner.sock
  sharedtensor serve --device cuda:0 llm=./llama-3
  sharedtensor serve --place cuda:0=40GiB,keep=5m a=a.safetensors b=b.safetensors
  sharedtensor serve gpt2=hf:openai-community/gpt2
  sharedtensor serve llm=llama-3-Q4_K_M.gguf
  sharedtensor serve --keep llm=./llama-3
  sharedtensor serve --policy policy.yaml --audit audit.jsonl llm=./llama-3`,
		ValidArgsFunction: completeModels,
		RunE: func(c *cobra.Command, words []string) error {
			models, err := parseModels(c, o.takeKeep(words), o.load)
			if err != nil {
				return err
			}
			out := unattended(c)
			defer out.close()
			next, err := serve(c, o, out, models)
			if next == nil {
				return err
			}
			if err != nil {
				next.log.Warn("not everything was released after the handover", "error", err)
			}
			return next.follow(c.Context())
		},
	}
	f := c.Flags()
	f.StringVar(&o.socket, "socket", "", "path of the socket to listen on (default: see sharedtensor --help)")
	f.StringVar(&o.keep, "keep", "", "keep the models for the next owner: process (the default of --keep alone), connect, systemd or dir:PATH")
	f.Lookup("keep").NoOptDefVal = keepProcess
	_ = c.RegisterFlagCompletionFunc("keep", cobra.FixedCompletions([]string{keepProcess, keepConnect, keepSystemd, keepDir}, cobra.ShellCompDirectiveNoFileComp))
	o.retain.add(c)
	f.StringArrayVar(&o.places, "place", nil, "copy models to this device for the processes that require them there: DEVICE[=BYTES][,keep=DURATION] (repeatable)")
	f.UintSliceVar(&o.uids, "allow-uid", nil, "also accept processes of this user id, which may publish too")
	f.StringVar(&o.policy, "policy", "", "YAML file with the rights of users and groups (see sharedtensor config)")
	f.StringVar(&o.audit, "audit", "", "append a line of JSON for each change to this file (default: the log)")
	f.BoolVar(&o.requireAudit, "require-audit", false, "refuse changes that cannot be recorded in the audit log")
	f.BoolVar(&o.offers, "offers", false, "let other processes (workers) offer functions that they run")
	f.DurationVar(&o.lockWait, "lock-wait", 2*time.Second, "time to wait for an owner of the socket that is ending, for example one that was killed")
	f.DurationVar(&o.grace, "grace", 10*time.Second, "time for requests in flight to complete when the owner stops")
	f.StringVar(&o.level, "log-level", "info", "log level on standard error: debug, info, warn or error")
	cli.DeviceFlag(c, &o.device)
	o.load.add(c)
	f.BoolVar(&o.digests, "digests", false, "compute the SHA-256 of each tensor of the models in the background")
	_ = c.RegisterFlagCompletionFunc("log-level", cobra.FixedCompletions([]string{"debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// keepValue reports whether a word is a value of --keep.
func keepValue(word string) bool {
	dir, is := strings.CutPrefix(word, keepDir)
	return word == keepProcess || word == keepConnect || word == keepSystemd || is && dir != ""
}

// takeKeep removes the value of --keep from words, if a space separates them. A NAME=PATH is never such a value.
func (o *serveFlags) takeKeep(words []string) (models []string) {
	for _, word := range words {
		if o.keep == keepProcess && keepValue(word) && !strings.Contains(word, "=") {
			o.keep = word
			continue
		}
		models = append(models, word)
	}
	return models
}

// permitted returns the check of peers that want to offer endpoints.
func (o *serveFlags) permitted() func(endpoint.Peer, []string) error {
	if o.offers {
		return endpoint.AllowOffers
	}
	return nil
}

// check refuses invalid combinations of flags.
func (o *serveFlags) check(c *cobra.Command) (*slog.Logger, []uint32, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.level)); err != nil {
		return nil, nil, cli.Usagef(c, "--log-level %q: use debug, info, warn or error", o.level)
	}
	if o.keep != "" && !keepValue(o.keep) {
		return nil, nil, cli.Usagef(c, "--keep=%s: use %s, %s or %sPATH, or %s for a keeper that others start", o.keep, keepProcess, keepSystemd, keepDir, keepConnect)
	}
	if err := o.retain.check(c); err != nil {
		return nil, nil, err
	}
	for _, text := range o.places {
		if _, err := parsePlace(text); err != nil {
			return nil, nil, cli.UsageError(c, err)
		}
	}
	if o.policy != "" && len(o.uids) > 0 {
		return nil, nil, cli.Usagef(c, "--allow-uid and --policy exclude each other: add a rule for these users")
	}
	if o.lockWait < 0 {
		return nil, nil, cli.Usagef(c, "--lock-wait %v: it must not be negative", o.lockWait)
	}
	if o.grace < 0 {
		return nil, nil, cli.Usagef(c, "--grace %v: it must not be negative", o.grace)
	}
	uids, err := cli.UserIDs("--allow-uid", o.uids)
	if err != nil {
		return nil, nil, cli.UsageError(c, err)
	}
	return slog.New(slog.NewTextHandler(c.ErrOrStderr(), &slog.HandlerOptions{Level: level})), uids, nil
}

// overBar clears the terminal's line before each write.
type overBar struct{ w io.Writer }

func (o overBar) Write(line []byte) (int, error) {
	n, err := o.w.Write(append([]byte(term.ClearLine), line...))
	return max(n-len(term.ClearLine), 0), err
}

// servingLine describes what is served on which socket.
func servingLine(models int, bytes int64, socket string, pid int) string {
	what := "nothing yet"
	if models > 0 {
		what = fmt.Sprintf("%s, %s,", term.Count(models, "model"), term.FormatBytes(bytes))
	}
	return fmt.Sprintf("serving %s on %s, pid %d", what, socket, pid)
}
