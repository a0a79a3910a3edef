package operation

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// as runs a command as a user in a user namespace that maps root and the given users. Without users it runs in this namespace.
func as(cmd *exec.Cmd, uid uint32, mapped ...int) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if len(mapped) > 0 {
		var ids []syscall.SysProcIDMap
		for _, id := range append([]int{0}, mapped...) {
			ids = append(ids, syscall.SysProcIDMap{ContainerID: id, HostID: id, Size: 1})
		}
		cmd.SysProcAttr.Cloneflags, cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = syscall.CLONE_NEWUSER, ids, ids
		cmd.SysProcAttr.GidMappingsEnableSetgroups = true
	}
	return cmd
}

// The overflow uid of a user namespace identifies no user: an owner and a client refuse it, also if their flags trust
// it, and name the cause. Users with a mapping are recognised.
func TestUsersOfNamespaces(t *testing.T) {
	const nobody = 65534
	for _, c := range []struct {
		name                string
		owner, client       uint32
		ownerMap, clientMap []int
		says                string // "" if the client is served
	}{
		{"two users of no namespace", 1000, 1000, nil, nil, ""},
		{"nobody of no namespace", nobody, nobody, nil, nil, ""},
		{"mapped users", 1000, 1000, []int{1000}, []int{1000}, ""},
		{"the client has no mapping at the owner", 1000, 1001, []int{1000, nobody}, nil, "stands for every user without a mapping"},
		{"the client is nobody", 1000, nobody, []int{1000, nobody}, nil, "stands for every user without a mapping"},
		{"the owner has no mapping at the client", 1001, 1000, nil, []int{1000, nobody}, "stands for every user without a mapping"},
		{"the owner is nobody", nobody, nobody, nil, []int{nobody}, "stands for every user without a mapping"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlace(t)
			dir := p.path("of")
			require.NoError(t, os.Mkdir(dir, 0o755))
			require.NoError(t, os.Chown(dir, int(c.owner), int(c.owner)))
			socket := dir + "/owner.sock"
			serve := as(exec.Command(program, "serve", "--socket", socket, "--allow-uid", fmt.Sprint(nobody)), c.owner, c.ownerMap...)
			owner := p.start(serve)
			p.eventually("the owner listens", func() bool { _, err := os.Stat(socket); return err == nil || !owner.running() })
			require.True(t, owner.running(), owner.out)
			out, err := output(as(exec.Command(program, "ping", "-c", "1", "--socket", socket, "--owner-uid", fmt.Sprintf("%d,%d", nobody, c.owner)), c.client, c.clientMap...))
			if c.says == "" {
				require.NoError(t, err, out)
				return
			}
			require.Error(t, err, out)
			require.Contains(t, out, c.says)
		})
	}

	t.Run("an owner that is nobody", func(t *testing.T) {
		p := newPlace(t)
		require.NoError(t, os.Chown(p.dir, nobody, nobody))
		err := as(exec.Command("true"), nobody, nobody).Run()
		drivertest.Needs(t, "userns", err == nil, fmt.Sprintf("this machine makes no user namespaces: %v", err))
		owner := p.start(as(exec.Command(program, "serve", "--socket", p.socket()), nobody, nobody))
		owner.ends(5 * time.Second)
		require.Contains(t, owner.out.String(), "stands for every user without a mapping")
		out, err := output(as(exec.Command(program, "doctor"), nobody, nobody))
		require.Error(t, err, out)
		require.Contains(t, out, "incomplete mapping")
	})
}

// A keeper and an owner refuse each other if the other's user has no id in their user namespace, and name the cause.
func TestUsersOfKeepersInNamespaces(t *testing.T) {
	const nobody = 65534
	const cause = "stands for every user without a mapping"
	p := newPlace(t)
	curl, err := exec.LookPath("curl")
	drivertest.Needs(t, "curl", err == nil, "curl is not installed")
	err = as(exec.Command("true"), 1000, 1000).Run()
	drivertest.Needs(t, "userns", err == nil, fmt.Sprintf("this machine makes no user namespaces: %v", err))
	dirOf := func(p *place, name string, uid uint32) string {
		dir := p.path(name)
		require.NoError(t, os.Mkdir(dir, 0o755))
		require.NoError(t, os.Chown(dir, int(uid), int(uid)))
		return dir
	}
	keep := func(p *place, socket string, uid uint32, mapped ...int) *process {
		keeper := p.start(as(exec.Command(program, "keep", "--socket", socket, "--idle", "0", "--log"), uid, mapped...))
		p.eventually("the keeper listens", func() bool { _, err := os.Stat(socket); return err == nil || !keeper.running() })
		return keeper
	}
	t.Run("mapped users", func(t *testing.T) {
		q := &place{t, p.dir}
		socket := dirOf(q, "mapped", 1000) + "/owner.sock"
		keep(q, socket+".keep", 1000, 1000)
		owner := q.start(as(exec.Command(program, "serve", "--socket", socket, "--keep=connect"), 1000, 1000))
		q.eventually("the owner serves", func() bool { _, err := os.Stat(socket); return err == nil || !owner.running() })
		require.True(t, owner.running(), owner.out)
		require.NotContains(t, owner.out.String(), "no keeper")
	})
	t.Run("a client without a mapping", func(t *testing.T) {
		q := &place{t, p.dir}
		socket := dirOf(q, "client", 1000) + "/k"
		keeper := keep(q, socket, 1000, 1000, nobody)
		require.NoError(t, os.Chmod(socket, 0o777)) // the user is checked behind the permissions of the file
		_ = as(exec.Command(curl, "-s", "-m", "5", "--unix-socket", socket, "http://keeper/"), 1001).Run()
		q.eventually("the keeper names the cause", func() bool { return strings.Contains(keeper.out.String(), cause) })
	})
	t.Run("a keeper that is nobody", func(t *testing.T) {
		q := &place{t, p.dir}
		keeper := q.start(as(exec.Command(program, "keep", "--socket", dirOf(q, "nobody", nobody)+"/k"), nobody, nobody))
		keeper.ends(5 * time.Second)
		require.Contains(t, keeper.out.String(), cause)
	})
	t.Run("a keeper without a mapping at its owner", func(t *testing.T) {
		q := &place{t, p.dir}
		const python = "/usr/bin/python3" // one in the home of a user may be closed to others
		_, err := os.Stat(python)
		drivertest.Needs(t, "python", err == nil, "there is no "+python)
		elsewhere := dirOf(q, "elsewhere", 1001) + "/k"
		// A keeper would refuse the owner first, so another program listens.
		listens := "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.bind(sys.argv[1])\ns.listen(8)\nwhile True: c = s.accept()"
		other := q.start(as(exec.Command(python, "-c", listens, elsewhere), 1001))
		q.eventually("the other program listens", func() bool { _, err := os.Stat(elsewhere); return err == nil || !other.running() })
		socket := dirOf(q, "owner", 1000) + "/owner.sock"
		require.NoError(t, os.Rename(elsewhere, socket+".keep"))
		require.NoError(t, os.Chmod(socket+".keep", 0o777))
		owner := q.start(as(exec.Command(program, "serve", "--socket", socket, "--keep=connect"), 1000, 1000))
		q.eventually("the owner names the cause", func() bool { return strings.Contains(owner.out.String(), cause) })
	})
}

// A gateway without tokens serves the processes of its own user. The overflow uid of its namespace is none.
func TestUsersOfGatewaysInNamespaces(t *testing.T) {
	const nobody = 65534
	p := newPlace(t)
	gateway := buildGateway(t)
	curl, err := exec.LookPath("curl")
	drivertest.Needs(t, "curl", err == nil, "curl is not installed")
	err = as(exec.Command("true"), 1000, 1000).Run()
	drivertest.Needs(t, "userns", err == nil, fmt.Sprintf("this machine makes no user namespaces: %v", err))
	for i, c := range []struct {
		name            string
		gateway, client uint32
		mapped          []int // of the gateway
		served          bool
	}{
		{"one user of no namespace", 1000, 1000, nil, true},
		{"two users of no namespace", 1000, 1001, nil, false},
		{"a mapped user", 1000, 1000, []int{1000}, true},
		{"a client without a mapping", 1000, 1001, []int{1000, nobody}, false},
		{"a client without a mapping at a gateway of nobody", nobody, 1001, []int{nobody}, false},
		{"nobody at a gateway of nobody", nobody, nobody, []int{nobody}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := &place{t, p.dir}
			address := fmt.Sprintf("127.0.0.1:%d", 25381+i)
			store := q.path(fmt.Sprint("store", i))
			require.NoError(t, os.Mkdir(store, 0o700))
			require.NoError(t, os.Chown(store, int(c.gateway), int(c.gateway)))
			g := q.start(as(exec.Command(gateway, "serve", "--owner", "off", "--store", store, "--http", address, "--grpc", "off", "--nats", "off", "--lame-duck", "0s", "--drain", "1s"), c.gateway, c.mapped...))
			get := func(uid uint32, path string) string {
				out, _ := output(as(exec.Command(curl, "-s", "-o", "/dev/null", "-w", "%{http_code}", "http://"+address+path), uid))
				return out
			}
			q.eventually("the gateway answers", func() bool { return get(0, "/healthz") == "200" || !g.running() })
			require.True(t, g.running(), g.out)
			got := get(c.client, "/metrics")
			if c.served {
				require.Equal(t, "200", got)
			} else {
				require.Equal(t, "401", got)
			}
			g.stop(8 * time.Second)
		})
	}
}
