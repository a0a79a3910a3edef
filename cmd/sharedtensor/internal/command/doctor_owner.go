package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
)

// examineTime limits each check that uses a socket.
const examineTime = 3 * time.Second

// examineSocket checks the socket's directory by running an owner and a client on another socket in it.
func examineSocket(ctx context.Context, o *cli.OwnerFlags) []finding {
	const check = "socket"
	path, err := o.Path(0)
	if err != nil {
		return []finding{fail(check, "set --socket or SHARED_TENSOR_BASE_PATH to a shorter path", "%v", err)}
	}
	dir := filepath.Dir(path)
	_, err = os.Stat(dir)
	made := errors.Is(err, os.ErrNotExist)
	findings := []finding{ok(check, "%s", path)}
	took, err := rehearse(ctx, filepath.Join(dir, fmt.Sprintf(".doctor-%d", os.Getpid())))
	if made {
		_ = os.Remove(dir) // succeeds only if empty: an owner may have started
	}
	const rehearsal = "publish and attach"
	if err != nil {
		return append(findings, fail(rehearsal, placeAdvice(err, dir), "%v", err))
	}
	return append(findings, ok(rehearsal, "over a socket in %s, in %s", dir, term.FormatDuration(took)))
}

// placeAdvice returns advice for a directory that is unfit for a socket.
func placeAdvice(err error, dir string) string {
	switch {
	case errors.Is(err, os.ErrPermission):
		return "make " + dir + " a directory of your own that only you can write, or choose another with --socket or SHARED_TENSOR_BASE_PATH"
	case errors.Is(err, os.ErrNotExist):
		return "make the directory above " + dir + ", or choose another with --socket or SHARED_TENSOR_BASE_PATH"
	}
	return sharingAdvice(err)
}

// rehearse runs a temporary owner: it publishes one tensor, attaches it over the socket and reads it. It returns the
// time that attaching took. The socket and its lock are removed when it returns.
func rehearse(ctx context.Context, base string) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, examineTime)
	defer cancel()
	path, err := endpoint.SocketPath(base, 0)
	if err != nil {
		return 0, err
	}
	dev, err := cli.OpenHost()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	devices := []driver.Device{dev}
	server, err := endpoint.NewServer(endpoint.ServerOptions{Socket: path, Devices: devices, Label: "sharedtensor doctor"})
	if err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(context.Background()) }()
	defer func() {
		err = errors.Join(err, server.Close())
		if served := <-ended; !errors.Is(served, endpoint.ErrServerClosed) {
			err = errors.Join(err, served)
		}
	}()
	model := module.Synthetic{Tensors: 1, Bytes: 1 << 16, Seed: 1}
	sd, err := module.Synthesize(dev, model)
	if err != nil {
		return 0, err
	}
	want, err := digestOf(ctx, sd)
	if err == nil {
		_, err = server.Publish(ctx, "doctor", sd, endpoint.PublishOptions{})
	}
	if err = errors.Join(err, sd.Close()); err != nil { // the server holds its own reference
		return 0, err
	}
	client, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: path, OverSocket: true, Devices: devices, Label: "sharedtensor doctor"})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	start := time.Now()
	h, err := client.Acquire(ctx, "doctor", endpoint.AcquireOptions{})
	if err != nil {
		return 0, err
	}
	took = time.Since(start)
	defer func() { err = errors.Join(err, h.Close()) }()
	got, err := digestOf(ctx, h.StateDict())
	if err == nil && got != want {
		err = errors.New("the attached bytes differ from the published ones")
	}
	return took, err
}

// digestOf returns the digest of the first tensor.
func digestOf(ctx context.Context, sd *module.StateDict) (module.Digest, error) {
	for _, t := range sd.All() {
		return module.TensorDigest(ctx, t)
	}
	return module.Digest{}, errors.New("there is no tensor")
}

// examineOwner checks whether an owner answers on the socket, and what it can share.
func examineOwner(ctx context.Context, o *cli.OwnerFlags) []finding {
	const check = "owner"
	ctx, cancel := context.WithTimeout(ctx, examineTime)
	defer cancel()
	path, err := o.Path(0)
	if err != nil {
		return []finding{fail(check, "", "%v", err)}
	}
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) && len(o.Others(path)) == 0 {
		return []finding{ok(check, "no owner is running; start your program, or: sharedtensor serve NAME=FILE")}
	}
	client, err := o.Dial(ctx)
	if err != nil {
		return []finding{ownerTrouble(check, path, err)}
	}
	defer client.Close()
	latency, err := client.Ping(ctx)
	if err != nil {
		return []finding{ownerTrouble(check, path, err)}
	}
	info, err := client.ServerInfo(ctx)
	if errors.Is(err, endpoint.ErrPermission) { // by its policy, which is no trouble of the owner
		return []finding{warn(check, "add info: true to a rule for this user in the owner's policy", "answers in %s; this user may not read its status", term.FormatDuration(latency))}
	}
	if err != nil {
		return []finding{ownerTrouble(check, path, err)}
	}
	return append([]finding{ownerLife(check, info, latency), ownerResults(info)}, ownerShares(info)...)
}

// resultsCheck names the check of the memory limit for cached results without holders.
const resultsCheck = "cached results"

// hostResults reports how much memory an owner on this host would use for cached results, and why.
func hostResults(dev driver.Device) finding {
	dir, err := os.MkdirTemp("", "doctor")
	if err != nil {
		return fail(resultsCheck, "", "%v", err)
	}
	defer func() { _ = os.Remove(dir) }() // best effort: the server does not listen
	server, err := endpoint.NewServer(endpoint.ServerOptions{Socket: filepath.Join(dir, "s"), Devices: []driver.Device{dev}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return fail(resultsCheck, "", "%v", err)
	}
	defer server.Close()
	info, err := server.ServerInfo(context.Background())
	if err != nil {
		return fail(resultsCheck, "", "%v", err)
	}
	l := resultsLimit(info)
	return ok(resultsCheck, "an owner keeps up to %s: %s", term.FormatBytes(l.All), l.Reason)
}

// resultsLimit returns the limit of cached results, or the zero value if the owner runs an older version.
func resultsLimit(info endpoint.ServerInfo) endpoint.LimitUse {
	for _, l := range info.Limits {
		if l.Name == "result_bytes" {
			return l
		}
	}
	return endpoint.LimitUse{}
}

// ownerResults reports how much memory the running owner uses for cached results, and why.
func ownerResults(info endpoint.ServerInfo) finding {
	const check = "owner's " + resultsCheck
	l := resultsLimit(info)
	switch {
	case l.Name == "":
		return ok(check, "unknown: the owner runs an older version")
	case l.All == 0:
		return warn(check, "set a limit, or memory may run out before results are dropped", "%s, without a limit: %s", term.FormatBytes(l.Used), l.Reason)
	}
	return ok(check, "%s of up to %s: %s", term.FormatBytes(l.Used), term.FormatBytes(l.All), l.Reason)
}

// ownerLife reports that the owner answers.
func ownerLife(check string, info endpoint.ServerInfo, latency time.Duration) finding {
	const released = "v"
	s := info.Stats
	detail := fmt.Sprintf("answers in %s, up %s, owns %s, %s mapped by clients, has %s", term.FormatDuration(latency), term.FormatAge(info.Uptime),
		term.FormatBytes(int64(s.BytesOwned)), term.FormatBytes(int64(s.BytesMapped)), term.Count(int(s.Models), "model"))
	switch own := endpoint.Version(); {
	case !info.Ready:
		return warn(check, "wait until it has stopped, and start another", "it is shutting down: %s", detail)
	case info.Version != own && strings.HasPrefix(info.Version, released) && strings.HasPrefix(own, released):
		return warn(check, "restart it with the same version", "it is version %s, this program %s: %s", info.Version, own, detail)
	}
	return ok(check, "%s", detail)
}

// ownerShares reports for each device of the owner the kinds of handle that share it.
func ownerShares(info endpoint.ServerInfo) (findings []finding) {
	for _, d := range info.Devices {
		check := "owner shares " + driverName(d)
		var kinds, reasons []string
		for _, h := range info.Capabilities.Handles {
			switch {
			case h.Device != d.UUID:
			case h.Supported:
				kinds = append(kinds, h.Kind)
			default:
				reasons = append(reasons, h.Kind+": "+h.Reason)
			}
		}
		switch {
		case len(kinds) > 0:
			findings = append(findings, ok(check, "by %s", strings.Join(kinds, ", ")))
		case len(reasons) > 0:
			findings = append(findings, warn(check, "see the checks of this device", "no kind of handle works: %s", strings.Join(reasons, "; ")))
		}
	}
	return findings
}

// ownerTrouble reports the problem with the owner of an existing socket.
func ownerTrouble(check, path string, err error) finding {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return warn(check, "wait until it answers, or check its log", "a process listens on %s but does not answer yet", path)
	case errors.Is(err, endpoint.ErrUnavailable):
		return warn(check, "start an owner: it removes the socket of a dead one", "%v", err)
	case errors.Is(err, endpoint.ErrPermission):
		return fail(check, "run as the owner's user; or start the owner with --allow-uid and pass --owner-uid to this command", "%v", err)
	case errors.Is(err, endpoint.ErrProtocol):
		return fail(check, "use the same version of sharedtensor for owner and clients", "%v", err)
	}
	return fail(check, "", "%v", err)
}
