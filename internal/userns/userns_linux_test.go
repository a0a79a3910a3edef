package userns

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

const childVariable = "USERNS_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) == "" {
		os.Exit(m.Run())
	}
	fmt.Println(User(0), User(1000), User(65534), Self(uint32(os.Geteuid())), Group(65534), Group(1000))
}

// The overflow id is a user only if the namespace maps every id, also if the namespace maps the overflow id itself.
func TestUserInNamespaces(t *testing.T) {
	if os.Getuid() != 0 {
		unavailable(t, "only root can map several users")
	}
	one := func(id int) syscall.SysProcIDMap { return syscall.SysProcIDMap{ContainerID: id, HostID: id, Size: 1} }
	first := syscall.SysProcIDMap{ContainerID: 0, HostID: 0, Size: 1}
	all := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: None}}
	for _, c := range []struct {
		name    string
		mapping []syscall.SysProcIDMap
		uid     uint32
		want    string
	}{
		{"complete as nobody", all, 65534, "0 1000 65534 true 65534 1000"},
		{"complete as a user", all, 1000, "0 1000 65534 true 65534 1000"},
		{"root only", []syscall.SysProcIDMap{first}, 0, "0 1000 4294967295 true 4294967295 1000"},
		{"nobody mapped", []syscall.SysProcIDMap{first, one(65534)}, 65534, "0 1000 4294967295 false 4294967295 1000"},
		{"user mapped", []syscall.SysProcIDMap{first, one(1000)}, 1000, "0 1000 4294967295 true 4294967295 1000"},
	} {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), childVariable+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWUSER, UidMappings: c.mapping, GidMappings: c.mapping, GidMappingsEnableSetgroups: true,
			Credential: &syscall.Credential{Uid: c.uid, Gid: c.uid},
		}
		out, err := cmd.CombinedOutput()
		if err != nil && len(out) == 0 {
			unavailable(t, "this machine has no user namespaces: "+err.Error())
		}
		require.NoError(t, err, "%s: %s", c.name, out)
		require.Equal(t, c.want, strings.TrimSpace(string(out)), c.name)
	}
}

// unavailable skips a test, or fails it if SHAREDTENSOR_REQUIRE lists "userns".
func unavailable(t *testing.T, why string) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("SHAREDTENSOR_REQUIRE"), ","), "userns") {
		t.Fatal(why)
	}
	t.Skip("SKIPPED, NOT TESTED (SHAREDTENSOR_REQUIRE=userns makes this a failure): " + why)
}

// The Python client has the same rule, and its tests read the same table.
func TestNobody(t *testing.T) {
	var table []struct {
		Name     string
		UID      uint32
		Map      *string
		Overflow *string
		NoProc   bool `json:"no_proc"`
		Nobody   bool
	}
	text, err := os.ReadFile("testdata/users.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &table))
	before := root
	defer func() { root = before }()
	for _, row := range table {
		files := fstest.MapFS{}
		if !row.NoProc {
			files["proc/self/status"] = &fstest.MapFile{}
		}
		if row.Map != nil {
			files[users.mapping] = &fstest.MapFile{Data: []byte(*row.Map)}
		}
		if row.Overflow != nil {
			files[users.overflow] = &fstest.MapFile{Data: []byte(*row.Overflow)}
		}
		root = files
		fresh := ids{mapping: users.mapping, overflow: users.overflow}
		require.Equal(t, row.Nobody, fresh.known(row.UID) == None, row.Name)
	}
}

func TestMapping(t *testing.T) {
	at := func(text string) (Mapping, error) {
		return Users(fstest.MapFS{"proc/self/uid_map": {Data: []byte(text)}, "proc/self/status": {}})
	}
	for text, complete := range map[string]bool{
		"":                          false,
		"0 0 4294967295\n":          true,
		"0 0 4294967294\n":          false,
		"0 100000 65536\n":          false,
		"0 0 1\n1 1 4294967294\n":   true,
		"0 0 1\n65534 65534 1\n":    false,
		"0 0 4294967295":            true,
		"0 0 65534\n65535 65535 9 ": false,
	} {
		m, err := at(text)
		require.NoError(t, err, text)
		require.Equal(t, complete, m.Complete(), text)
	}
	_, err := at("0 0 x\n")
	require.Error(t, err)
	_, err = Users(fstest.MapFS{})
	require.Error(t, err, "without /proc the mapping is unknown")
	m, err := Users(fstest.MapFS{"proc/self/status": {}})
	require.NoError(t, err)
	require.True(t, m.Complete(), "a kernel without user namespaces")
	require.EqualValues(t, 65534, OverflowUser(fstest.MapFS{}))
	require.EqualValues(t, 99, OverflowUser(fstest.MapFS{"proc/sys/kernel/overflowuid": {Data: []byte("99\n")}}))
}
