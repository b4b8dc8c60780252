// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// purposes are all purposes in the order of the columns of TestObstacle.
var purposes = []inventory.Purpose{inventory.Launch, inventory.Start, inventory.Build, inventory.Keep, inventory.Request}

// rawHost is everything that decides about the availability of a Host.
type rawHost struct {
	off, excluded, maintenance, unsized bool
	sleep                               declared.SleepState
	// polls is how many polls of the Cluster failed.
	polls int
}

func (r rawHost) state() inventory.HostState {
	row := proxmox.HostRow{Name: "pve1", Online: !r.off, Maintenance: r.maintenance}
	if !r.unsized {
		row.CPUs, row.MemoryBytes = 8, 64<<30
	}
	snapshot := observed.NewSnapshot(observed.Result{Region: "r", Resources: proxmox.Resources{Hosts: []proxmox.HostRow{row}}}, nil, observed.VMIDRange{})
	settings, records, failures := declared.Settings{}, declared.Records{}, map[string]error{}
	if r.excluded {
		settings, _ = declared.ParseSettings([]byte(`{"r": {"pve1": {"excluded": true}}}`))
	}
	if r.sleep != "" {
		records.Sleeping = map[observed.HostName]declared.Sleep{{Region: "r", Host: "pve1"}: {State: r.sleep}}
	}
	if r.polls > 0 {
		failures["r"] = &inventory.PollError{Region: "r", Count: r.polls, Err: proxmox.ErrUnreachable}
	}
	state, _ := inventory.NewView(map[string]*observed.Snapshot{"r": snapshot}, failures, nil, settings, records).Host("r", "pve1")
	return state
}

// obstacles are the reasons for all purposes; "-" where the Host is available.
func obstacles(state inventory.HostState) []string {
	var out []string
	for _, purpose := range purposes {
		reason := string(state.Obstacle(purpose).Reason)
		if reason == "" {
			reason = "-"
		}
		out = append(out, reason)
	}
	return out
}

func TestObstacle(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		host rawHost
		want string // launch, start, build, keep, request
	}{
		{"awake", rawHost{}, "- - - - -"},
		{"excluded", rawHost{excluded: true}, "Excluded - - Excluded -"},
		{"offline", rawHost{off: true}, "Offline - Offline Offline Offline"},
		{"in_maintenance", rawHost{maintenance: true}, "InMaintenance - - InMaintenance -"},
		{"size_unknown", rawHost{unsized: true}, "SizeUnknown - - - -"},
		{"shutting_down", rawHost{sleep: declared.ShuttingDown}, "- Sleeping Sleeping - -"},
		{"asleep", rawHost{off: true, sleep: declared.Asleep}, "- Sleeping Sleeping - Off"},
		{"waking", rawHost{off: true, sleep: declared.Waking}, "- Sleeping Sleeping - Off"},
		{"wake_failed", rawHost{off: true, sleep: declared.WakeFailed}, "NotAwake Sleeping NotAwake Offline Offline"},
		{"one_failed_poll", rawHost{polls: 1}, "- - PollFailed - -"},
		{"unreachable", rawHost{polls: 2}, "Unreachable - Unreachable - Unreachable"},
		{"reboot_during_maintenance", rawHost{off: true, maintenance: true}, "Offline - Offline Offline Offline"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			NewWithT(t).Expect(strings.Join(obstacles(c.host.state()), " ")).To(Equal(c.want))
		})
	}
}

// A state of a Host never makes it available for more: with all combinations, each purpose is refused if
// one of the states alone refuses it, and only then.
func TestObstacleCombinations(t *testing.T) {
	t.Parallel()
	for n := range 1 << 4 {
		for _, sleep := range []declared.SleepState{"", declared.ShuttingDown, declared.Asleep, declared.Waking, declared.WakeFailed} {
			for polls := range 3 {
				host := rawHost{off: n&1 > 0, excluded: n&2 > 0, maintenance: n&4 > 0, unsized: n&8 > 0, sleep: sleep, polls: polls}
				combined := obstacles(host.state())
				power := obstacles(rawHost{off: host.off, sleep: sleep}.state()) // a Host that is asleep is not offline
				parts := [][]string{power, obstacles(rawHost{excluded: host.excluded}.state()), obstacles(rawHost{maintenance: host.maintenance}.state()),
					obstacles(rawHost{unsized: host.unsized}.state()), obstacles(rawHost{polls: polls}.state())}
				for p := range purposes {
					var refused bool
					for _, part := range parts {
						refused = refused || part[p] != "-"
					}
					if refused != (combined[p] != "-") {
						t.Errorf("%+v, purpose %d: %s", host, p, fmt.Sprint(combined))
					}
				}
			}
		}
	}
}
