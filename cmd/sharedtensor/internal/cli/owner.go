package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// OwnerFlags say which owner a command talks to.
type OwnerFlags struct {
	// Wait says to wait for an owner that is not there yet, or for a model that it still loads.
	Wait bool
	// Timeout is how long an owner may take to answer.
	Timeout time.Duration

	socket string
	uids   []uint
	label  string
	notes  func() io.Writer // gets the note that another socket is used than the default one; nil drops it
}

// AddOwnerFlags adds them to a command and returns where they are kept.
func AddOwnerFlags(c *cobra.Command) *OwnerFlags {
	o := &OwnerFlags{label: "sharedtensor " + c.Name(), notes: c.ErrOrStderr}
	f := c.Flags()
	f.StringVar(&o.socket, "socket", "", "path of the owner's socket (default: see sharedtensor --help)")
	f.BoolVar(&o.Wait, "wait", false, "wait for an owner that is not there yet, or still loads, as long as --timeout says")
	f.DurationVar(&o.Timeout, "timeout", 10*time.Second, "give up on the owner after this long")
	f.UintSliceVar(&o.uids, "owner-uid", nil, "also trust an owner that runs as this user id")
	return o
}

// Path is the socket to dial.
func (o *OwnerFlags) Path(device int) (string, error) {
	if o.socket != "" {
		return o.socket, nil
	}
	return endpoint.SocketPath("", device)
}

// Bounded is ctx with the time limit for what is asked of the owner.
func (o *OwnerFlags) Bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, o.Timeout, Late(o.Timeout))
}

// Late is an owner that did not answer within a time. It answers for context.DeadlineExceeded.
type Late time.Duration

// Error says how long that was.
func (l Late) Error() string {
	return fmt.Sprintf("the owner did not answer within %v", time.Duration(l))
}

// Is makes the error answer for context.DeadlineExceeded.
func (l Late) Is(target error) bool { return target == context.DeadlineExceeded }

// Silent returns the same flags for a question on the side, such as that of a completion: it waits for nothing and
// writes nothing.
func (o *OwnerFlags) Silent() *OwnerFlags {
	quick := *o
	quick.Wait, quick.notes = false, nil
	return &quick
}

// Dial connects to the owner at the default socket of device number 0, or where --socket says. Where nobody serves on
// the former, it is the only other owner that there is.
func (o *OwnerFlags) Dial(ctx context.Context, devices ...driver.Device) (*endpoint.Client, error) {
	return o.DialDevice(ctx, 0, devices...)
}

// DialDevice is dial with the default socket of another device.
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
	opts := endpoint.ClientOptions{Socket: path, Devices: devices, AllowUIDs: uids, Label: o.label}
	client, err := endpoint.Dial(ctx, opts)
	if !errors.Is(err, endpoint.ErrUnavailable) {
		return client, err
	}
	if ctx.Err() != nil { // the time was over when the socket was looked at: that is what ended the wait
		if o.Wait {
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		return nil, err
	}
	others := o.Others(path)
	if len(others) == 1 {
		if o.notes != nil {
			fmt.Fprintf(o.notes(), "nobody serves on %s; using %s, the only owner there is\n", path, others[0])
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

// Others are the sockets of other devices, beside the default one at path, that somebody listens on.
func (o *OwnerFlags) Others(path string) []string {
	base, found := strings.CutSuffix(path, "-0.sock")
	if o.socket != "" || !found {
		return nil
	}
	files, _ := filepath.Glob(filepath.Join(escape(filepath.Dir(base)), escape(filepath.Base(base))+"-*.sock")) // the only error is of the pattern
	var others []string
	for _, file := range files {
		number := strings.TrimSuffix(strings.TrimPrefix(file, base+"-"), ".sock")
		if _, err := strconv.ParseUint(number, 10, 31); err == nil && file != path && Alive(file) {
			others = append(others, file)
		}
	}
	return others
}

// escape makes a pattern for filepath.Glob of a path, which matches that alone.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// Alive reports whether somebody listens on a socket.
func Alive(socket string) bool {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// WithOwner dials, lends the client to use, and hangs up.
func (o *OwnerFlags) WithOwner(ctx context.Context, use func(ctx context.Context, client *endpoint.Client) error) error {
	client, err := o.Dial(ctx)
	if err != nil {
		return err
	}
	return errors.Join(use(ctx, client), client.Close())
}

// UserIDs turns the numbers of a flag into user ids.
func UserIDs(flag string, numbers []uint) ([]uint32, error) {
	ids := make([]uint32, 0, len(numbers))
	for _, n := range numbers {
		if n > 1<<32-2 { // the highest number means "no user" to the kernel
			return nil, fmt.Errorf("%w: %s %d is no user id", driver.ErrInvalid, flag, n)
		}
		ids = append(ids, uint32(n))
	}
	return ids, nil
}

// CompleteNames offers the names that are published, for the positional arguments up to the limit; 0 is no limit.
func CompleteNames(o *OwnerFlags, limit int) cobra.CompletionFunc {
	return func(c *cobra.Command, words []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if limit > 0 && len(words) >= limit {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return PublishedNames(o, prefix), cobra.ShellCompDirectiveNoFileComp
	}
}

// Completion is a word that a shell may complete, and what it means.
func Completion(word, about string) string {
	return term.Printable(word) + "\t" + term.Printable(strings.TrimSpace(about))
}

// CompletionTime is how long a key press may wait for the owner.
const CompletionTime = 500 * time.Millisecond

// PublishedNames asks the owner for names with a prefix. Where there is no answer there are no names: a shell has no
// place for errors.
func PublishedNames(o *OwnerFlags, prefix string) []string {
	ctx, cancel := context.WithTimeout(context.Background(), CompletionTime)
	defer cancel()
	client, err := o.Silent().Dial(ctx)
	if err != nil {
		return nil
	}
	defer client.Close()
	models, err := client.List(ctx)
	if err != nil {
		return nil
	}
	var names []string
	for _, m := range models {
		if m.Current != 0 && strings.HasPrefix(m.Name, prefix) {
			v := m.Versions[0]
			names = append(names, Completion(m.Name, fmt.Sprintf("version %d, %s", m.Current, term.FormatBytes(v.Bytes))))
		}
	}
	return names
}
