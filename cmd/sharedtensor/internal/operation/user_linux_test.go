package operation

import (
	"fmt"
	"os"
	"os/exec"
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
