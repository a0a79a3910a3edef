// Package cli contains what the commands share: exit statuses, errors, the flags that select an owner, and device
// names.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// OwnerFlags holds the flags that select the owner of a command.
type OwnerFlags struct {
	// Wait waits for an owner that has not started, or for a model that it is still loading.
	Wait bool
	// Timeout limits the time that an owner may take to answer.
	Timeout time.Duration

	socket string
	uids   []uint
	label  string
	notes  func() io.Writer // receives a note if another socket than the default one is used; nil discards it
}

// AddOwnerFlags adds the flags to a command and returns their values.
func AddOwnerFlags(c *cobra.Command) *OwnerFlags {
	o := &OwnerFlags{label: "sharedtensor " + c.Name(), notes: c.ErrOrStderr}
	f := c.Flags()
	f.StringVar(&o.socket, "socket", "", "path of the owner's socket (default: see sharedtensor --help)")
	f.BoolVar(&o.Wait, "wait", false, "wait up to --timeout for an owner to start, or for a model to load")
	f.DurationVar(&o.Timeout, "timeout", 10*time.Second, "time limit for the owner's answers")
	f.UintSliceVar(&o.uids, "owner-uid", nil, "also trust an owner with this user id")
	return o
}

// Path returns the path of the socket to dial.
func (o *OwnerFlags) Path(device int) (string, error) {
	if o.socket != "" {
		return o.socket, nil
	}
	return endpoint.SocketPath("", device)
}

// Bounded returns ctx with the time limit for requests to the owner.
func (o *OwnerFlags) Bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, o.Timeout, Late(o.Timeout))
}

// Late is the error for an owner that did not answer in time. It matches context.DeadlineExceeded.
type Late time.Duration

// Error returns a message with the time limit.
func (l Late) Error() string {
	return fmt.Sprintf("the owner did not answer within %v", time.Duration(l))
}

// Is makes the error match context.DeadlineExceeded.
func (l Late) Is(target error) bool { return target == context.DeadlineExceeded }

// Silent returns a copy of the flags for secondary requests, such as completion. It does not wait for an owner and
// writes no notes.
func (o *OwnerFlags) Silent() *OwnerFlags {
	quick := *o
	quick.Wait, quick.notes = false, nil
	return &quick
}

// Dial connects to the owner at --socket or, by default, at the socket of device 0. If no server listens at the default
// socket and there is exactly one other owner, Dial connects to that one.
func (o *OwnerFlags) Dial(ctx context.Context, devices ...driver.Device) (*endpoint.Client, error) {
	return o.DialDevice(ctx, 0, devices...)
}

// DialDevice is Dial with the default socket of the given device.
func (o *OwnerFlags) DialDevice(ctx context.Context, index int, devices ...driver.Device) (*endpoint.Client, error) {
	path, err := o.Path(index)
	if err != nil {
		return nil, err
	}
	uids, err := UserIDs("--owner-uid", o.uids)
	if err != nil {
		return nil, err
	}
	ctx, cancel := o.Bounded(ctx)
	defer cancel()
	// Commands print what their user must know, and a log would disturb the view of top.
	opts := endpoint.ClientOptions{Socket: path, Devices: devices, AllowUIDs: uids, Label: o.label, Logger: slog.New(slog.DiscardHandler)}
	client, err := endpoint.Dial(ctx, opts)
	if !errors.Is(err, endpoint.ErrUnavailable) {
		return client, err
	}
	if ctx.Err() != nil { // the time limit ended while the socket was probed
		if o.Wait {
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		return nil, err
	}
	others := o.Others(path)
	if len(others) == 1 {
		if o.notes != nil {
			fmt.Fprintf(o.notes(), "no owner listens on %s; using %s, the only other owner\n", path, others[0])
		}
		opts.Socket, opts.Wait = others[0], o.Wait
		return endpoint.Dial(ctx, opts)
	}
	if o.Wait {
		opts.Wait = true
		return endpoint.Dial(ctx, opts)
	}
	if len(others) > 1 {
		return nil, fmt.Errorf("%w; there are other owners: try --socket %s", err, strings.Join(others, " or --socket "))
	}
	return nil, err
}

// Others returns the sockets of other devices, next to the default one at path, on which a server listens.
func (o *OwnerFlags) Others(path string) []string {
	base, found := strings.CutSuffix(path, "-0.sock")
	if o.socket != "" || !found {
		return nil
	}
	files, _ := filepath.Glob(filepath.Join(escape(filepath.Dir(base)), escape(filepath.Base(base))+"-*.sock")) // the only possible error is a malformed pattern
	var others []string
	for _, file := range files {
		number := strings.TrimSuffix(strings.TrimPrefix(file, base+"-"), ".sock")
		if _, err := strconv.ParseUint(number, 10, 31); err == nil && file != path && Alive(file) {
			others = append(others, file)
		}
	}
	return others
}

// escape returns a pattern for filepath.Glob that matches only path.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// Alive reports whether a server listens on a socket.
func Alive(socket string) bool {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// WithOwner dials, calls use with the client, and closes the client.
func (o *OwnerFlags) WithOwner(ctx context.Context, use func(ctx context.Context, client *endpoint.Client) error) error {
	client, err := o.Dial(ctx)
	if err != nil {
		return err
	}
	return errors.Join(use(ctx, client), client.Close())
}

// UserIDs converts the numbers of a flag to user ids.
func UserIDs(flag string, numbers []uint) ([]uint32, error) {
	ids := make([]uint32, 0, len(numbers))
	for _, n := range numbers {
		if n > 1<<32-2 { // the highest number means "no user" to the kernel
			return nil, fmt.Errorf("%w: %s %d is not a user id", driver.ErrInvalid, flag, n)
		}
		ids = append(ids, uint32(n))
	}
	return ids, nil
}

// CompleteNames completes published names for the first limit positional arguments, or for all if limit is 0.
func CompleteNames(o *OwnerFlags, limit int) cobra.CompletionFunc {
	return func(c *cobra.Command, words []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if limit > 0 && len(words) >= limit {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return PublishedNames(o, prefix), cobra.ShellCompDirectiveNoFileComp
	}
}

// Completion returns a completion with its description.
func Completion(word, about string) string {
	return term.Printable(word) + "\t" + term.Printable(strings.TrimSpace(about))
}

// CompletionTime limits how long a completion waits for the owner.
const CompletionTime = 500 * time.Millisecond

// Complete queries the owner for completions. It returns none on failure, because a shell cannot show errors during
// completion.
func Complete(o *OwnerFlags, ask func(ctx context.Context, client *endpoint.Client) ([]string, error)) []string {
	ctx, cancel := context.WithTimeout(context.Background(), CompletionTime)
	defer cancel()
	client, err := o.Silent().Dial(ctx)
	if err != nil {
		return nil
	}
	defer client.Close()
	words, err := ask(ctx, client)
	if err != nil {
		return nil
	}
	return words
}

// PublishedNames returns the owner's published names that begin with prefix.
func PublishedNames(o *OwnerFlags, prefix string) []string {
	return Complete(o, func(ctx context.Context, client *endpoint.Client) (names []string, err error) {
		models, err := client.List(ctx)
		for _, m := range models {
			if m.Current != 0 && strings.HasPrefix(m.Name, prefix) {
				names = append(names, Completion(m.Name, fmt.Sprintf("version %d, %s", m.Current, term.FormatBytes(m.Versions[0].Bytes))))
			}
		}
		return names, err
	})
}
