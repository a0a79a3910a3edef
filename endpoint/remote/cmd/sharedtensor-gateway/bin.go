package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
)

// binCommand holds the options shared by all `bin` commands.
type binCommand struct {
	nats      natsFlags
	namespace string
	json      bool
	timeout   time.Duration // limit of one command; 0 means none
}

func newBinCommand() *cobra.Command {
	b := &binCommand{}
	c := &cobra.Command{
		Use:   "bin",
		Short: "Put values into named bins on NATS, take them out and watch them",
		Example: `  echo '{"reward": 12}' | sharedtensor-gateway bin append episodes
  sharedtensor-gateway bin get episodes --wait
  sharedtensor-gateway bin listen 'episodes.>'`,
	}
	onlyVerbs(c)
	b.nats.add(c)
	c.PersistentFlags().StringVar(&b.namespace, "namespace", "default", "namespace of the bins")
	c.PersistentFlags().DurationVar(&b.timeout, "timeout", 30*time.Second,
		"how long the servers may take, 0 for as long as they like; listen and get --wait wait for ever")
	c.PersistentFlags().BoolVar(&b.json, "json", false, "print JSON, one object a line")
	c.AddCommand(b.write("put", "Replace the items of a bin by one", (*bins.Store).Put),
		b.write("append", "Add an item to a bin", (*bins.Store).Append), b.get(), b.peek(), b.rm(), b.ls(), b.listen(), b.namespaces(), b.drop())
	return c
}

// with opens the store, calls use and closes the store.
func (b *binCommand) with(ctx context.Context, use func(context.Context, *bins.Store) error) error {
	if b.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, b.timeout)
		defer cancel()
	}
	conn, err := b.nats.connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	store, err := bins.Open(ctx, conn, bins.Options{Namespace: b.namespace})
	if err != nil {
		return err
	}
	err = use(ctx, store)
	// The items have been printed. Pending removals are finished now, or by a gateway's next sweep.
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	_ = store.Drain(drain)
	return err
}

// drainTimeout limits how long a command waits for the removal of the messages and bodies of consumed items.
const drainTimeout = 5 * time.Second

type writeFunc func(*bins.Store, context.Context, string, bins.Value, ...bins.WriteOption) (uint64, error)

func (b *binCommand) write(verb, short string, write writeFunc) *cobra.Command {
	var text, mediaType string
	var meta map[string]string
	var list bool
	c := &cobra.Command{
		Use: verb + " BIN [FILE]", Short: short, Args: usageArgs(cobra.RangeArgs(1, 2)),
		Long: short + ". The item is the content of FILE, or --text. Without both, or if FILE is -, it is standard input.",
		RunE: func(c *cobra.Command, args []string) error {
			body, err := itemBody(c, args[1:], text)
			if err != nil {
				return err
			}
			return b.with(c.Context(), func(ctx context.Context, s *bins.Store) error {
				var opts []bins.WriteOption
				if list {
					opts = append(opts, bins.AsList())
				}
				sequence, err := write(s, ctx, args[0], bins.Value{Type: mediaType, Meta: meta, Body: body}, opts...)
				if err == nil && b.json {
					err = json.NewEncoder(c.OutOrStdout()).Encode(map[string]any{"bin": args[0], "sequence": sequence, "bytes": len(body)})
				}
				return err
			})
		},
	}
	c.Flags().StringVar(&text, "text", "", "the item itself, instead of a file")
	c.Flags().StringVar(&mediaType, "type", "", "media type of the item, such as application/json")
	c.Flags().StringToStringVar(&meta, "meta", nil, "KEY=VALUE metadata of the item")
	if verb == "put" {
		c.Flags().BoolVar(&list, "list", false, "the item is a JSON array; readers get its elements")
	}
	return c
}

func itemBody(c *cobra.Command, file []string, text string) ([]byte, error) {
	switch {
	case c.Flags().Changed("text") && len(file) > 0:
		return nil, usageError{errors.New("--text and a file cannot be combined")}
	case c.Flags().Changed("text"):
		return []byte(text), nil
	case len(file) == 0 || file[0] == "-":
		return io.ReadAll(io.LimitReader(c.InOrStdin(), bins.DefaultMaxItemBytes+1))
	}
	return os.ReadFile(file[0])
}

func (b *binCommand) get() *cobra.Command {
	var opts bins.TakeOptions
	var damaged bool
	c := &cobra.Command{
		Use: "get BIN", Short: "Take all items out of a bin, or some, and print them", Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			if opts.Wait {
				b.timeout = 0
			}
			if opts.Max < 0 {
				return usageError{errors.New("--max must be a number of items, or 0 for all")}
			}
			return b.with(c.Context(), func(ctx context.Context, s *bins.Store) error {
				if damaged {
					opts.Damaged = func(sequence uint64, err error) {
						fmt.Fprintf(c.ErrOrStderr(), "removed the damaged item %d: %v\n", sequence, err)
					}
				}
				items, err := s.Take(ctx, args[0], opts)
				if err != nil {
					return err
				}
				return b.printItems(c.OutOrStdout(), items)
			})
		},
	}
	c.Flags().BoolVar(&opts.Wait, "wait", false, "wait for an item if the bin is empty")
	c.Flags().BoolVar(&damaged, "skip-damaged", false, "remove damaged items, and report them on standard error, instead of failing")
	c.Flags().IntVar(&opts.Max, "max", 0, "maximum number of items to take, oldest first; 0 for all")
	return c
}

func (b *binCommand) peek() *cobra.Command {
	return &cobra.Command{
		Use: "peek BIN", Short: "Print the items of a bin and leave them", Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			return b.with(c.Context(), func(ctx context.Context, s *bins.Store) error {
				items, err := s.Peek(ctx, args[0])
				if err != nil {
					return err
				}
				return b.printItems(c.OutOrStdout(), items)
			})
		},
	}
}

// itemLine is an item as --json prints it.
type itemLine struct {
	Sequence uint64            `json:"sequence"`
	Time     time.Time         `json:"time"`
	Type     string            `json:"type,omitempty"`
	Meta     map[string]string `json:"meta,omitempty"`
	Bytes    int               `json:"bytes"`
	// Text is the body if it is valid UTF-8, otherwise Base64 is set.
	Text   *string `json:"text,omitempty"`
	Base64 []byte  `json:"base64,omitempty"`
}

// printItems writes bodies unchanged, so that a pipe receives what was put. If there are several, each ends with a
// newline.
func (b *binCommand) printItems(w io.Writer, items []bins.Item) error {
	out := json.NewEncoder(w)
	for _, item := range items {
		if b.json {
			line := itemLine{Sequence: item.Sequence, Time: item.Time, Type: item.Type, Meta: item.Meta, Bytes: len(item.Body)}
			if text := string(item.Body); utf8.ValidString(text) {
				line.Text = &text
			} else {
				line.Base64 = item.Body
			}
			if err := out.Encode(line); err != nil {
				return err
			}
			continue
		}
		body := item.Body
		if isTerminal(w) {
			body = []byte(printable(string(body)))
		}
		if len(items) > 1 && (len(body) == 0 || body[len(body)-1] != '\n') {
			body = append(slices.Clip(body), '\n')
		}
		if _, err := w.Write(body); err != nil {
			return err
		}
	}
	return nil
}

func (b *binCommand) rm() *cobra.Command {
	return &cobra.Command{
		Use: "rm BIN...", Short: "Remove all items of bins", Args: usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			return b.with(c.Context(), func(ctx context.Context, s *bins.Store) error {
				for _, bin := range args {
					if err := s.Delete(ctx, bin); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}

func (b *binCommand) ls() *cobra.Command {
	return &cobra.Command{
		Use: "ls [PATTERN]", Short: "List bins and how many items they have", Args: usageArgs(cobra.MaximumNArgs(1)),
		Long: "List bins and how many items they have. In PATTERN * stands for one part of a name between dots, > at the end for all that follow.",
		RunE: func(c *cobra.Command, args []string) error {
			pattern := ">"
			if len(args) > 0 {
				pattern = args[0]
			}
			return b.with(c.Context(), func(ctx context.Context, s *bins.Store) error {
				counts, err := s.List(ctx, pattern)
				if err != nil {
					return err
				}
				return b.printCounts(c.OutOrStdout(), counts)
			})
		},
	}
}

// connected connects, calls use and closes the connection.
func (b *binCommand) connected(ctx context.Context, use func(context.Context, *nats.Conn) error) error {
	if b.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, b.timeout)
		defer cancel()
	}
	conn, err := b.nats.connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	return use(ctx, conn)
}

func (b *binCommand) namespaces() *cobra.Command {
	return &cobra.Command{
		Use: "namespaces", Short: "List namespaces of bins, and queues", Args: usageArgs(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return b.connected(c.Context(), func(ctx context.Context, conn *nats.Conn) error {
				list, err := bins.Survey(ctx, conn)
				if err != nil {
					return err
				}
				table := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
				if !b.json {
					fmt.Fprintln(table, "KIND\tNAMESPACE\tITEMS\tBYTES")
				}
				for _, s := range list {
					if b.json {
						if err := json.NewEncoder(c.OutOrStdout()).Encode(s); err != nil {
							return err
						}
						continue
					}
					fmt.Fprintf(table, "%s\t%s\t%d\t%d\n", s.Kind, printableLine(s.Namespace), s.Items, s.Bytes+s.Beside)
				}
				return table.Flush()
			})
		},
	}
}

func (b *binCommand) drop() *cobra.Command {
	queue := false
	c := &cobra.Command{
		Use: "drop NAMESPACE", Short: "Remove a namespace with all its items", Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			return b.connected(c.Context(), func(ctx context.Context, conn *nats.Conn) error {
				if queue {
					return bins.DropQueue(ctx, conn, args[0])
				}
				return bins.Drop(ctx, conn, args[0])
			})
		},
	}
	c.Flags().BoolVar(&queue, "queue", false, "remove a queue instead of a namespace of bins")
	return c
}

func (b *binCommand) printCounts(w io.Writer, counts map[string]int) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if !b.json {
		fmt.Fprintln(table, "BIN\tITEMS")
	}
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if b.json {
			if err := json.NewEncoder(w).Encode(map[string]any{"bin": name, "items": counts[name]}); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintf(table, "%s\t%d\n", printableLine(name), counts[name])
	}
	return table.Flush()
}

func (b *binCommand) listen() *cobra.Command {
	return &cobra.Command{
		Use: "listen [PATTERN]", Short: "Print each change of bins until interrupted", Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			pattern := ">"
			if len(args) > 0 {
				pattern = args[0]
			}
			b.timeout = 0
			return b.with(c.Context(), func(ctx context.Context, s *bins.Store) error { return b.print(ctx, c.OutOrStdout(), s, pattern) })
		},
	}
}

func (b *binCommand) print(ctx context.Context, w io.Writer, s *bins.Store, pattern string) error {
	events, err := s.Listen(ctx, pattern)
	if err != nil {
		return err
	}
	defer events.Close()
	for event, err := range events.Events(ctx) {
		if errors.Is(err, context.Canceled) {
			return nil // Ctrl-C is the normal way to end it
		}
		if err != nil {
			return err
		}
		if b.json {
			err = json.NewEncoder(w).Encode(map[string]any{"bin": event.Bin, "items": event.Items, "sequence": event.Sequence, "op": event.Op})
		} else {
			_, err = fmt.Fprintf(w, "%s|%d\n", printableLine(event.Bin), event.Items)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// onlyVerbs makes a command that only groups others print its help, and refuse unknown subcommands.
func onlyVerbs(c *cobra.Command) {
	c.Args = cobra.ArbitraryArgs
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return c.Help()
		}
		return usageError{fmt.Errorf("unknown command %q: see `%s --help`", args[0], c.CommandPath())}
	}
}

// usageArgs reports a wrong number of arguments as a usage error.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return usageError{fmt.Errorf("%w: see `%s --help`", err, c.CommandPath())}
		}
		return nil
	}
}

// printable makes untrusted text safe for a terminal by replacing control characters with '?'. It keeps newlines and
// tabs.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}

// printableLine is printable for text that must stay on one line.
func printableLine(text string) string {
	return strings.NewReplacer("\n", "?", "\t", "?").Replace(printable(text))
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
