// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"strings"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestListFlappingOffering(t *testing.T) {
	t.Parallel()
	v, class := newViewer(), newNodeClassWithAllHosts()
	p, clock := newProvider(t, v)
	offered := func() bool { return availability(find(t, p.List(class, ""), oneType))["pve1"] }
	online := func(on bool) {
		clock.Step(5 * time.Second)
		v.change(func(r map[string]*proxmox.Resources) { r["east"].Hosts[0].Online = on })
	}
	offered()
	for n := range 2 {
		if online(false); offered() {
			t.Fatalf("an offline Host is offered, time %d", n)
		}
		if online(true); !offered() {
			t.Fatalf("a Host that is online again is not offered immediately, time %d", n)
		}
	}
	online(false)
	if offered() {
		t.Error("an offline Host is offered")
	}
	online(true)
	if offered() {
		t.Error("the third time within minutes, it must be delayed")
	}
	if reason := p.UnavailableReasons(class, oneType)[zone("east", "pve1")]; !strings.Contains(reason, "became unavailable 3 times") {
		t.Errorf("the reason is %q", reason)
	}
	if !availability(find(t, p.List(class, ""), oneType))["pve2"] {
		t.Error("the other Host is delayed too")
	}
	clock.Step(30 * time.Second)
	if !offered() {
		t.Error("after the backoff it is still delayed")
	}
	if reason := p.UnavailableReasons(class, oneType)[zone("east", "pve1")]; reason != "" {
		t.Errorf("it is offered, but the reason is %q", reason)
	}
	clock.Step(6 * time.Minute)
	online(false)
	offered()
	if online(true); !offered() {
		t.Error("old losses still count")
	}
}
