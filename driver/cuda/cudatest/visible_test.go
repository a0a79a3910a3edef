package cudatest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

const visibleVariable = "SHAREDTENSOR_TEST_VISIBLE"

// printVisible prints the devices that a process of TestVisibleDevices sees.
func printVisible(t *testing.T) {
	var n int32
	fmt.Println("init", int(cu.Init(0)))
	require.NoError(t, cu.DeviceGetCount(&n).Err())
	for i := range n {
		var uuid cu.UUID
		require.NoError(t, cu.DeviceGetUuid(&uuid, cu.Device(i)).Err())
		fmt.Printf("device %x\n", uuid.Bytes[:2])
	}
}

// CUDA_VISIBLE_DEVICES selects and orders devices by number, by UUID and by the beginning of a UUID. The first invalid
// entry ends the list, and a device that is named twice hides all.
func TestVisibleDevices(t *testing.T) {
	if os.Getenv(visibleVariable) != "" {
		printVisible(t)
		return
	}
	uuids := []string{"aaaa0000-0000-0000-0000-000000000001", "aabb0000-0000-0000-0000-000000000002", "ccdd0000-0000-0000-0000-000000000003"}
	const a, b, c = "aaaa", "aabb", "ccdd"
	const migA, migC = "2aaa", "4cdd" // the UUIDs of the instances
	for _, test := range []struct {
		mig     bool
		visible string
		want    []string
	}{
		{false, "0,1,2", []string{a, b, c}},
		{false, "2,0", []string{c, a}},
		{false, "1", []string{b}},
		{false, "0,2,-1,1", []string{a, c}},
		{false, "0,3,1", []string{a}},
		{false, "-1", nil},
		{false, "3", nil},
		{false, "none", nil},
		{false, "NoDevFiles", nil},
		{false, "1,,2", []string{b}},
		{false, "1,", []string{b}},
		{false, "1,1", nil},
		{false, "0,1,0", nil},
		{false, "1gpu,2x", []string{b, c}},
		{false, "GPU-" + uuids[1], []string{b}},
		{false, "GPU-" + uuids[2] + ",GPU-" + uuids[0], []string{c, a}},
		{false, "GPU-c", []string{c}},
		{false, "GPU-aab,GPU-cc", []string{b, c}},
		{false, "GPU-aa", nil}, // two devices begin like this
		{false, "GPU-cc,GPU-aa", []string{c}},
		{false, "GPU-", nil},
		{false, "GPU-ee", nil},
		{false, "GPU-cc,GPU-ee,GPU-aaaa", []string{c}},
		{false, "GPU-cc,GPU-ccdd", nil}, // the same device twice
		{false, "GPU-" + uuids[1] + "0", nil},
		{false, uuids[1], nil},
		{false, "GPU-cc,0", []string{c}}, // kinds are not mixed
		{false, "0,GPU-cc", []string{a}},
		{false, "MIG-cc", nil},
		{true, "MIG-2aaa", []string{migA}},
		{true, "MIG-2aaa,MIG-4cdd", []string{migA}}, // one instance is visible
		{true, "MIG-4", []string{migC}},
		{true, "MIG-aa", nil},
		{true, "MIG-GPU-" + uuids[2] + "/0/0", []string{migC}},
		{true, "MIG-GPU-" + uuids[2] + "/1/0", nil},
		{true, "MIG-GPU-cc/0/0", nil},
		{true, "GPU-cc", []string{migC}},
	} {
		t.Run(fmt.Sprintf("mig=%v %s", test.mig, test.visible), func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestVisibleDevices$", "-test.v")
			cmd.Env = append(os.Environ(), Options{Devices: 3, UUIDs: uuids, MIG: test.mig, Visible: test.visible}.Env(t)...)
			cmd.Env = append(cmd.Env, visibleVariable+"=1")
			out, _ := cmd.CombinedOutput() // it fails if there is no device
			var got []string
			for line := range strings.Lines(string(out)) {
				if id, ok := strings.CutPrefix(strings.TrimSpace(line), "device "); ok {
					got = append(got, id)
				}
			}
			require.Equal(t, test.want, got, string(out))
			if test.want == nil {
				require.Contains(t, string(out), fmt.Sprintf("init %d\n", int(cu.ERROR_NO_DEVICE)))
			}
		})
	}
}
