// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim

import (
	"maps"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/engine"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/wire"
)

// Request is a request that the simulator has served or dropped.
type Request struct {
	Method   string        `json:"method"`
	Template string        `json:"template"` // "/nodes/{node}/qemu"; empty for unknown paths
	Path     string        `json:"path"`
	Who      string        `json:"who"`
	Host     string        `json:"host,omitempty"` // of the endpoint; empty for the one of the cluster
	Status   int           `json:"status"`         // 0 if the connection was dropped
	Time     time.Time     `json:"time"`
	Took     time.Duration `json:"took"` // real time
}

type recorder struct {
	mu     sync.Mutex
	keep   int
	list   []Request
	counts map[string]int
}

func newRecorder(keep int) *recorder {
	if keep <= 0 {
		keep = 100000
	}
	return &recorder{keep: keep, counts: map[string]int{}}
}

func (r *recorder) add(o wire.Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.list) >= r.keep {
		r.list = append(r.list[:0], r.list[len(r.list)/2:]...)
	}
	r.list = append(r.list, Request{
		Method: o.Verb, Template: o.Template, Path: o.Path, Who: o.Who, Host: o.Host, Status: o.Status, Time: o.Start, Took: o.Took,
	})
	r.counts[o.Verb+" "+o.Template]++
}

// Requests returns the recorded requests in the order of their responses.
func (s *Simulator) Requests() []Request {
	s.requests.mu.Lock()
	defer s.requests.mu.Unlock()
	return append([]Request(nil), s.requests.list...)
}

// GuestState is a VM or container with its options.
type GuestState = engine.GuestView

// Guests returns all guests in the order of their VMIDs. Faults and outages do not affect it.
func (s *Simulator) Guests() []GuestState { return s.engine.Overview(0).Guests }

// TaskEnd returns when a task ended; false if it runs or does not exist.
func (s *Simulator) TaskEnd(upid string) (time.Time, bool) {
	t := s.engine.Tasks.Get(upid)
	if t == nil || t.State().Running {
		return time.Time{}, false
	}
	return t.State().End, true
}

// FirewallGroups returns the security groups in the firewall files of VMs by VMID, including stale files of deleted VMs.
func (s *Simulator) FirewallGroups() map[int][]string { return s.engine.FirewallGroups() }

// CountRequests counts recorded requests by method and path; both may be empty, the path may be a template or a pattern
// as in path.Match.
func (s *Simulator) CountRequests(method, pattern string) int {
	n := 0
	for _, r := range s.Requests() {
		if method != "" && !strings.EqualFold(method, r.Method) {
			continue
		}
		if ok, _ := path.Match(pattern, r.Path); pattern == "" || pattern == r.Template || ok {
			n++
		}
	}
	return n
}

// RequestCounts counts all requests since the start, by "METHOD /template".
func (s *Simulator) RequestCounts() map[string]int {
	s.requests.mu.Lock()
	defer s.requests.mu.Unlock()
	return maps.Clone(s.requests.counts)
}

// ResetRequests deletes the recorded requests.
func (s *Simulator) ResetRequests() {
	s.requests.mu.Lock()
	defer s.requests.mu.Unlock()
	s.requests.list, s.requests.counts = nil, map[string]int{}
}
