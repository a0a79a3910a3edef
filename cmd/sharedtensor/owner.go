package main

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

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// ownerFlags say which owner a command talks to.
type ownerFlags struct {
	socket  string
	wait    bool
	timeout time.Duration
	uids    []uint
	label   string
	notes   func() io.Writer // where it is said that another socket is used; nil for nowhere
}

// addOwnerFlags adds them to a command and returns where they are kept.
func addOwnerFlags(c *cobra.Command) *ownerFlags {
	o := &ownerFlags{label: "sharedtensor " + c.Name(), notes: c.ErrOrStderr}
	f := c.Flags()
	f.StringVar(&o.socket, "socket", "", "path of the owner's socket (default: see sharedtensor --help)")
	f.BoolVar(&o.wait, "wait", false, "wait for an owner that is not there yet, or still loads, as long as --timeout says")
	f.DurationVar(&o.timeout, "timeout", 10*time.Second, "give up on the owner after this long")
	f.UintSliceVar(&o.uids, "owner-uid", nil, "also trust an owner that runs as this user id")
	return o
}

// path is the socket to dial.
func (o *ownerFlags) path(device int) (string, error) {
	if o.socket != "" {
		return o.socket, nil
	}
	return endpoint.SocketPath("", device)
}

// bounded is ctx with the time limit for what is asked of the owner.
func (o *ownerFlags) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, o.timeout, late(o.timeout))
}

// late is an owner that did not answer within a time. It answers for context.DeadlineExceeded.
type late time.Duration

func (l late) Error() string {
	return fmt.Sprintf("the owner did not answer within %v", time.Duration(l))
}

func (l late) Is(target error) bool { return target == context.DeadlineExceeded }

// silent are the same flags for who asks by the way: nothing is waited for or said.
func (o *ownerFlags) silent() *ownerFlags {
	quick := *o
	quick.wait, quick.notes = false, nil
	return &quick
}

// dial connects to the owner at the default socket of device number 0, or where --socket says. Where nobody serves on the former, it is the only
// other owner that there is.
func (o *ownerFlags) dial(ctx context.Context, devices ...driver.Device) (*endpoint.Client, error) {
	return o.dialDevice(ctx, 0, devices...)
}

// dialDevice is dial with the default socket of another device.
func (o *ownerFlags) dialDevice(ctx context.Context, index int, devices ...driver.Device) (*endpoint.Client, error) {
	path, err := o.path(index)
	if err != nil {
		return nil, err
	}
	uids, err := userIDs("--owner-uid", o.uids)
	if err != nil {
		return nil, err
	}
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	opts := endpoint.ClientOptions{Socket: path, Devices: devices, AllowUIDs: uids, Label: o.label}
	client, err := endpoint.Dial(ctx, opts)
	if !errors.Is(err, endpoint.ErrUnavailable) || ctx.Err() != nil {
		return client, err
	}
	others := o.others(path)
	if len(others) == 1 {
		if o.notes != nil {
			fmt.Fprintf(o.notes(), "nobody serves on %s; using %s, the only owner there is\n", path, others[0])
		}
		opts.Socket, opts.Wait = others[0], o.wait
		return endpoint.Dial(ctx, opts)
	}
	if o.wait {
		opts.Wait = true
		return endpoint.Dial(ctx, opts)
	}
	if len(others) > 1 {
		return nil, fmt.Errorf("%w; there are other owners: try --socket %s", err, strings.Join(others, " or --socket "))
	}
	return nil, err
}

// others are the sockets of other devices, beside the default one at path, that somebody listens on.
func (o *ownerFlags) others(path string) []string {
	base, found := strings.CutSuffix(path, "-0.sock")
	if o.socket != "" || !found {
		return nil
	}
	files, _ := filepath.Glob(filepath.Join(escape(filepath.Dir(base)), escape(filepath.Base(base))+"-*.sock")) // the only error is of the pattern
	var others []string
	for _, file := range files {
		number := strings.TrimSuffix(strings.TrimPrefix(file, base+"-"), ".sock")
		if _, err := strconv.ParseUint(number, 10, 31); err == nil && file != path && alive(file) {
			others = append(others, file)
		}
	}
	return others
}

// escape makes a pattern for filepath.Glob of a path, which matches that alone.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// alive tells whether somebody listens on a socket.
func alive(socket string) bool {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// withOwner dials, lends the client to use, and hangs up.
func (o *ownerFlags) withOwner(ctx context.Context, use func(ctx context.Context, client *endpoint.Client) error) error {
	client, err := o.dial(ctx)
	if err != nil {
		return err
	}
	return errors.Join(use(ctx, client), client.Close())
}

// userIDs turns the numbers of a flag into user ids.
func userIDs(flag string, numbers []uint) ([]uint32, error) {
	ids := make([]uint32, 0, len(numbers))
	for _, n := range numbers {
		if n > 1<<32-2 { // the highest number means "no user" to the kernel
			return nil, fmt.Errorf("%w: %s %d is no user id", driver.ErrInvalid, flag, n)
		}
		ids = append(ids, uint32(n))
	}
	return ids, nil
}

// completeNames offers the names that are published, for the positional arguments up to the limit; 0 is no limit.
func completeNames(o *ownerFlags, limit int) cobra.CompletionFunc {
	return func(c *cobra.Command, words []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if limit > 0 && len(words) >= limit {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return publishedNames(o, prefix), cobra.ShellCompDirectiveNoFileComp
	}
}

// completion is a word that a shell may complete, and what it means.
func completion(word, about string) string {
	return printable(word) + "\t" + printable(strings.TrimSpace(about))
}

// completionTime is how long a key press may wait for the owner.
const completionTime = 500 * time.Millisecond

// publishedNames asks the owner for names with a prefix. Where there is no answer there are no names: a shell has no place for errors.
func publishedNames(o *ownerFlags, prefix string) []string {
	ctx, cancel := context.WithTimeout(context.Background(), completionTime)
	defer cancel()
	client, err := o.silent().dial(ctx)
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
			names = append(names, completion(m.Name, fmt.Sprintf("version %d, %s", m.Current, formatBytes(v.Bytes))))
		}
	}
	return names
}
