// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/clock"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/wire"
)

// Fault is a rule that makes calls or tasks fail. Method, Path, Task and TaskID select calls or tasks; Skip, Count and
// Probability control when the rule applies; the other fields define its effect.
type Fault struct {
	// Method is GET, POST, PUT or DELETE; empty matches all.
	Method string `json:"method,omitempty"`
	// Path is a pattern for the path below /api2/json, as in path.Match, for example "/nodes/*/qemu/*/clone". A template
	// such as "/nodes/{node}/qemu" matches its method exactly; empty matches all.
	Path string `json:"path,omitempty"`
	// Task is a task type such as "qmclone": the rule then applies to tasks instead of calls. "*" matches all.
	Task string `json:"task,omitempty"`
	// TaskID restricts a rule for tasks to one ID, usually a VMID.
	TaskID string `json:"taskID,omitempty"`

	// Skip ignores that many matches first; Count disables the rule after that many hits (0: never).
	Skip  int `json:"skip,omitempty"`
	Count int `json:"count,omitempty"`
	// Probability is the chance of a hit; 0 means always.
	Probability float64 `json:"probability,omitempty"`

	// Delay delays the call or task, in simulated time.
	Delay Duration `json:"delay,omitempty"`
	// Status and Message are returned without any effect, for example 500 "got no worker upid - start worker
	// failed", 595 or 596.
	Status  int    `json:"status,omitempty"`
	Message string `json:"message,omitempty"`
	// DropBefore closes the connection before the call takes effect, DropAfter after it has taken effect.
	DropBefore bool `json:"dropBefore,omitempty"`
	DropAfter  bool `json:"dropAfter,omitempty"`
	// Fail makes a task fail with this error without doing its work.
	Fail string `json:"fail,omitempty"`
	// Hang makes a task run until it is stopped.
	Hang bool `json:"hang,omitempty"`
}

// Duration is a time.Duration that is encoded in JSON as "1.5s".
type Duration time.Duration

// MarshalText returns the duration as text.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText parses a duration such as "1.5s".
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("parsing duration %q: %w", text, err)
	}
	*d = Duration(v)
	return nil
}

func (f Fault) validate() error {
	switch {
	case f.Task != "" && (f.Status != 0 || f.DropBefore || f.DropAfter):
		return errors.New("a rule for tasks cannot set the response of calls: use fail, hang or delay")
	case f.Task == "" && (f.Fail != "" || f.Hang):
		return errors.New("fail and hang are for tasks: set task")
	case f.Probability < 0 || f.Probability > 1:
		return fmt.Errorf("probability: %v is not between 0 and 1", f.Probability)
	case f.Status != 0 && (f.Status < 400 || f.Status > 599):
		return fmt.Errorf("status: %d is not an error", f.Status)
	}
	if _, err := path.Match(f.Path, "/"); err != nil {
		return fmt.Errorf("path: %q is not a pattern: %w", f.Path, err)
	}
	return nil
}

// FaultState is a rule with the number of its matches and hits.
type FaultState struct {
	ID int `json:"id"`
	Fault
	Matched int `json:"matched"`
	Hits    int `json:"hits"`
}

type faultTable struct {
	clock *clock.Clock
	mu    sync.Mutex
	rand  *rand.Rand
	next  int
	rules []*FaultState
}

func newFaultTable(seed uint64, c *clock.Clock) *faultTable {
	return &faultTable{clock: c, rand: rand.New(rand.NewPCG(seed, 1))} //nolint:gosec // deterministic by design
}

// AddFault adds a rule and returns its ID. Rules are evaluated in the order in which they were added; the first hit
// applies.
func (s *Simulator) AddFault(f Fault) (int, error) {
	if err := f.validate(); err != nil {
		return 0, fmt.Errorf("adding fault: %w", err)
	}
	t := s.faults
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next++
	t.rules = append(t.rules, &FaultState{ID: t.next, Fault: f})
	return t.next, nil
}

// RemoveFault removes a rule and reports whether it existed.
func (s *Simulator) RemoveFault(id int) bool {
	t := s.faults
	t.mu.Lock()
	defer t.mu.Unlock()
	before := len(t.rules)
	t.rules = slices.DeleteFunc(t.rules, func(r *FaultState) bool { return r.ID == id })
	return len(t.rules) < before
}

// ClearFaults removes all rules.
func (s *Simulator) ClearFaults() {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.rules = nil
}

// Faults returns the rules.
func (s *Simulator) Faults() []FaultState {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	out := make([]FaultState, 0, len(s.faults.rules))
	for _, r := range s.faults.rules {
		out = append(out, *r)
	}
	return out
}

// hit counts a match and reports whether the rule applies.
func (t *faultTable) hit(r *FaultState) bool {
	r.Matched++
	if r.Matched <= r.Skip || (r.Count > 0 && r.Hits >= r.Count) {
		return false
	}
	if r.Probability > 0 && t.rand.Float64() >= r.Probability {
		return false
	}
	r.Hits++
	return true
}

func (t *faultTable) onCall(c wire.Call) wire.Fault {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.rules {
		if r.Task != "" || (r.Method != "" && !strings.EqualFold(r.Method, c.Verb)) {
			continue
		}
		if ok, _ := path.Match(r.Path, c.Path); r.Path != "" && r.Path != c.Template && !ok {
			continue
		}
		if t.hit(r) {
			return wire.Fault{
				Delay: time.Duration(r.Delay), Status: r.Status, Message: r.Message, DropBefore: r.DropBefore, DropAfter: r.DropAfter,
			}
		}
	}
	return wire.Fault{}
}

func (t *faultTable) onTask(ctx context.Context, u tasks.UPID) error {
	f, ok := t.taskRule(u)
	if !ok {
		return nil
	}
	if err := t.clock.Sleep(ctx, time.Duration(f.Delay)); err != nil {
		return err
	}
	if f.Hang {
		<-ctx.Done()
		return ctx.Err()
	}
	if f.Fail != "" {
		return errors.New(f.Fail)
	}
	return nil
}

func (t *faultTable) taskRule(u tasks.UPID) (Fault, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.rules {
		if r.Task == "" || (r.Task != "*" && r.Task != u.Type) || (r.TaskID != "" && r.TaskID != u.ID) {
			continue
		}
		if t.hit(r) {
			return r.Fault, true
		}
	}
	return Fault{}, false
}

// HostDown powers a host off. Connections to it then fail as specified by how: "refused", "noroute" or "timeout".
func (s *Simulator) HostDown(host, how string) error {
	if text := oneOf(how, "", "refused", "noroute", "timeout"); text != "" {
		return fmt.Errorf("taking host %s down: %s", host, text)
	}
	return s.engine.HostDown(host, how)
}

// HostUp powers a host on and starts its VMs with onboot.
func (s *Simulator) HostUp(host string) error { return s.engine.HostUp(host) }

// ShutdownHost shuts a host down as its administrator would: a stopall task stops its guests, then it powers off.
func (s *Simulator) ShutdownHost(host string) error { return s.engine.ShutdownHost(host) }

// SetMaintenance enables or disables the HA manager's maintenance mode of a host. Guests are not migrated.
func (s *Simulator) SetMaintenance(host string, on bool) error {
	return s.engine.SetMaintenance(host, on)
}

// SetQuorum sets whether the cluster has quorum.
func (s *Simulator) SetQuorum(ok bool) { s.engine.SetQuorum(ok) }

// SetStorageFull sets whether every allocation on a storage fails.
func (s *Simulator) SetStorageFull(storage string, full bool) error {
	return s.engine.SetStorageFull(storage, full)
}

// SetStorageActive sets whether a storage is active on a host. To make a storage late after the power-on of a host, set
// it to inactive before HostUp, and to active later.
func (s *Simulator) SetStorageActive(host, storage string, active bool) error {
	return s.engine.SetStorageActive(host, storage, active)
}

// SetClockSkew sets the offset of the hosts' clocks from real time.
func (s *Simulator) SetClockSkew(d time.Duration) { s.engine.Clock.SetSkew(d) }

// PowerOffGuest powers a VM off as if the guest had shut itself down.
func (s *Simulator) PowerOffGuest(vmid int) error { return s.engine.PowerOffGuest(vmid) }

// SetGuestHealth changes the health of a running VM's guest. Each boot resets it to HealthWell.
func (s *Simulator) SetGuestHealth(vmid int, health Health) error {
	return s.engine.SetGuestHealth(vmid, string(health))
}

// SetHA adds a VM to HA with a requested state ("started", "stopped", "disabled", "ignored"); "" removes it.
func (s *Simulator) SetHA(vmid int, state string) error { return s.engine.SetHA(vmid, state) }

// HAState returns the requested HA state of a VM; false if HA does not manage it.
func (s *Simulator) HAState(vmid int) (string, bool) { return s.engine.HAState(vmid) }

// SetConfigLock sets the "lock:" key of a VM, as a backup or a crash would; "" removes it.
func (s *Simulator) SetConfigLock(vmid int, lock string) error {
	return s.engine.SetConfigLock(vmid, lock)
}

// HoldVMLock acquires the file lock of a VM's config, as a process on the host would, until release is called.
func (s *Simulator) HoldVMLock(ctx context.Context, host string, vmid int) (release func(), err error) {
	return s.engine.HoldGuestLock(ctx, host, vmid)
}

// HoldStorageLock acquires the lock for allocating and freeing volumes of a storage, as another process on the host
// would, until release is called.
func (s *Simulator) HoldStorageLock(ctx context.Context, host, storage string) (release func(), err error) {
	return s.engine.HoldStorageLock(ctx, host, storage)
}

// MigrateGuest moves a VM to another host immediately, with the same visible result as a migration.
func (s *Simulator) MigrateGuest(vmid int, host string) error {
	return s.engine.MigrateGuest(vmid, host)
}

// RestoreCopy creates a VM as if the backup of another VM was restored to a new VMID: it keeps uuid, description and
// tags.
func (s *Simulator) RestoreCopy(vmid, newid int) error { return s.engine.RestoreCopy(vmid, newid) }
