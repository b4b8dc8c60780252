// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

const (
	powerHosts = 5
	// wattsIdle and wattsFull are the power of each host.
	wattsIdle, wattsFull = 60, 180
	// bootTime is how long a simulated host boots, in its accelerated time.
	bootTime = 40 * time.Second
	// powerSpeed is the factor of the simulator's time.
	powerSpeed = 5
)

// TestPowerManagement lets the load rise and fall. Hosts sleep while they are not needed, and are
// woken for pods.
func TestPowerManagement(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it shuts hosts down"))
	settings := filepath.Join(t.TempDir(), "hosts.json")
	write := func(mode string) {
		must(t, os.WriteFile(settings, fmt.Appendf(nil,
			`{"*": {"*": {"powermanagement": %q, "idletime": "3s", "waketimeout": "2m", "wattsidle": %d, "wattsfull": %d}}}`, mode, wattsIdle, wattsFull), 0o600))
	}
	write("Enabled")
	e := newEnv(t, setup{hosts: powerHosts, speed: powerSpeed, scenario: powerScenario, args: []string{"--node-setting-file", settings}})
	energy := e.measureEnergy(t)
	p := e.newNodePool(t, "power", nil)
	p.deploy(t, 2, func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{LabelSelector: d.Spec.Selector, TopologyKey: corev1.LabelHostname}},
		}}
	})
	p.waitForPods(t, 2)
	launch := p.longestPending(t)

	e.waitForSleeping(t, 2)
	// Three hosts that are awake have the capacity for six Nodes.
	const many = 9
	must(t, harness.Scale(t.Context(), e.kube, p.name, many))
	e.eventually(t, "a host to be woken", func(ctx context.Context) error {
		records, err := e.sleepRecords(ctx)
		for _, record := range records {
			if record.State == inventory.Waking {
				return nil
			}
		}
		return cmp.Or(err, errors.New("no host is being woken"))
	})
	e.controller.Kill()
	must(t, e.controller.Start(t.Context()))
	p.waitForPods(t, many)
	e.waitForSleeping(t, 0)
	if p.longestWake(t) == 0 {
		t.Error("no launch waited for a host")
	}
	p.checkPending(t, launch)
	if os.Getenv("E2E_LONG") != "" {
		p.runDay(t, launch)
	}

	must(t, harness.Scale(t.Context(), e.kube, p.name, 2))
	e.waitForSleeping(t, 2)
	p.waitForPods(t, 2)
	with, without := energy()
	t.Logf("energy in this run: %.5f kWh with power management, %.5f kWh without", with, without)
	if with >= without {
		t.Error("no energy was saved")
	}

	families, err := e.controller.MetricFamilies(t.Context())
	must(t, err)
	for name, reason := range absentMetrics {
		if reason == noPowerManagement && families[name] == nil {
			t.Errorf("metric %s does not exist", name)
		}
	}

	// Hosts return when power management is turned off.
	write("None")
	e.waitForSleeping(t, 0)
	p.scaleToZero(t)
	p.deleteAllClaims(t)
}

// powerScenario has hosts with the capacity for two Nodes each. Three of five must be awake for
// quorum.
func powerScenario(s *pvesim.Scenario) {
	s.Votes = &pvesim.Votes{}
	s.Guests = slices.DeleteFunc(s.Guests, func(g pvesim.Guest) bool { return g.VMID < 9000 })
	s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Sys.PowerMgmt")
	for i := range s.Hosts {
		host := &s.Hosts[i]
		host.Sockets, host.Cores = 1, 4
		host.Config = map[string]string{"wakeonlan": fmt.Sprintf("BC:24:11:AA:00:%02d", i+1)}
		host.ShutdownTime, host.BootTime = pvesim.Duration(10*time.Second), pvesim.Duration(bootTime)
	}
}

// sleepRecords returns the records about hosts that were shut down, by region and host.
func (e *env) sleepRecords(ctx context.Context) (map[string]inventory.Sleep, error) {
	stored := &corev1.ConfigMap{}
	if err := e.kube.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: power.ConfigMapName}, stored); err != nil {
		return nil, err
	}
	records := map[string]inventory.Sleep{}
	for host, text := range stored.Data {
		var record inventory.Sleep
		if err := json.Unmarshal([]byte(text), &record); err != nil {
			return nil, err
		}
		records[host] = record
	}
	return records, nil
}

func (e *env) waitForSleeping(t *testing.T, want int) {
	t.Helper()
	e.within(t, 3*timeout(), fmt.Sprintf("%d sleeping hosts", want), func(ctx context.Context) error {
		records, err := e.sleepRecords(ctx)
		for host, record := range records {
			if record.State != inventory.Asleep {
				return fmt.Errorf("host %s is %s", host, record.State)
			}
		}
		if err == nil && len(records) != want {
			err = fmt.Errorf("%d hosts are asleep", len(records))
		}
		return err
	})
}

// checkPending checks that no pod waited longer than for a host and a launch.
func (p *nodePool) checkPending(t *testing.T, launch time.Duration) {
	t.Helper()
	pending, wake := p.longestPending(t), p.longestWake(t)
	t.Logf("longest time until a pod was ready: %s; launches waited for hosts for up to %s; without that they took %s", pending, wake, launch)
	if limit := wake + 3*launch + 30*time.Second; pending > limit {
		t.Errorf("a pod was pending for %s, want at most %s", pending, limit)
	}
}

// runDay lets the load rise and fall as on a day, with an hour in twenty seconds.
func (p *nodePool) runDay(t *testing.T, launch time.Duration) {
	t.Helper()
	for hour, pods := range []int32{2, 2, 2, 2, 2, 3, 4, 6, 8, 9, 9, 8, 7, 9, 9, 8, 8, 7, 6, 5, 4, 3, 2, 2} {
		ends := time.Now().Add(20 * time.Second)
		must(t, harness.Scale(t.Context(), p.kube, p.name, pods))
		p.waitForPods(t, int(pods))
		p.checkPending(t, launch)
		records, err := p.sleepRecords(t.Context())
		must(t, err)
		t.Logf("%02d:00: %d pods, %d of %d hosts are asleep, shut down or woken", hour, pods, len(records), powerHosts)
		time.Sleep(time.Until(ends))
	}
}

// longestPending returns the longest time between the creation of a pod and its readiness.
func (p *nodePool) longestPending(t *testing.T) (longest time.Duration) {
	t.Helper()
	pods, err := harness.Pods(t.Context(), p.kube, p.name)
	must(t, err)
	for _, pod := range pods {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady {
				longest = max(longest, c.LastTransitionTime.Sub(pod.CreationTimestamp.Time))
			}
		}
	}
	return longest
}

// longestWake returns the longest time that a launch waited for its host.
func (p *nodePool) longestWake(t *testing.T) (longest time.Duration) {
	t.Helper()
	claims, err := p.claims(t.Context())
	must(t, err)
	for i := range claims {
		progress := instance.ReadProgress(&claims[i])
		for _, step := range progress.Steps() {
			if step.Phase == instance.PhaseHostAwake {
				longest = max(longest, step.At)
			}
		}
	}
	return longest
}

// measureEnergy returns a function that returns the energy of all hosts so far in kWh, with those
// that were off, and if they had been on. Hosts have no load.
func (e *env) measureEnergy(t *testing.T) func() (with, without float64) {
	t.Helper()
	var mu sync.Mutex
	var on, all time.Duration
	go func() {
		for last := time.Now(); t.Context().Err() == nil; time.Sleep(pollInterval) {
			hosts, err := e.api.Hosts(t.Context())
			if err != nil {
				continue
			}
			passed := time.Since(last) * powerSpeed
			last = last.Add(time.Since(last))
			mu.Lock()
			for _, online := range hosts {
				if all += passed; online {
					on += passed
				}
			}
			mu.Unlock()
		}
	}()
	return func() (with, without float64) {
		mu.Lock()
		defer mu.Unlock()
		return on.Hours() * wattsIdle / 1000, all.Hours() * wattsIdle / 1000
	}
}
