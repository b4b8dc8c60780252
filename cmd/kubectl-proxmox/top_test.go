// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// escape matches what a terminal does not show as text.
var escape = regexp.MustCompile(`\x1b(\[[0-9;?<>=]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[()][A-Z0-9]|[=>78M])`)

// visible returns the text of a terminal's output, with single spaces.
func visible(output string) string {
	return strings.Join(strings.Fields(escape.ReplaceAllString(output, " ")), " ")
}

// sampleFleet returns a map of two hosts with a VM each.
func sampleFleet() fleet.Map {
	m := fleet.Map{Taken: time.Date(2026, 11, 16, 12, 0, 0, 0, time.UTC), NodePools: []fleet.NodePool{{Name: "default", VMs: 1}, {Name: "gpu", VMs: 1}}}
	for i, pool := range []string{"default", "gpu"} {
		host := fmt.Sprintf("pve%d", i+1)
		m.Hosts = append(m.Hosts, fleet.Host{Region: "home", Name: host, CPUs: fleet.Usage{Total: 16, VMs: 4}, Cells: []fleet.Cell{{ID: 0}, {ID: 1}}})
		m.VMs = append(m.VMs, fleet.VM{
			Region: "home", Host: host, VMID: 20001 + i, Claim: pool + "-a", Node: pool + "-a", NodePool: pool, Type: "s1.4VCPU-16GB", Phase: fleet.Ready,
			PricePerHour: float64(i + 1), Pods: []fleet.Pod{{Namespace: "shop", Name: "web-" + pool, Ready: true, MilliCPUs: 500}},
		})
	}
	m.Pending = []fleet.Pod{{Namespace: "shop", Name: "waits", Reason: "pve1: 1 CPUs free, 2 required"}}
	m.Activity = []string{"launching nodeclaim gpu-b"}
	for i := range 50 {
		m.Events = append(m.Events, fleet.Event{Reason: "Nominated", Object: fmt.Sprintf("pod/p%d", i)})
	}
	return m
}

// press sends messages to a model.
func press(m tea.Model, messages ...tea.Msg) topModel {
	for _, msg := range messages {
		if key, ok := msg.(string); ok {
			msg = keyPress(key)
		}
		m, _ = m.Update(msg)
	}
	return m.(topModel)
}

func keyPress(name string) tea.KeyPressMsg {
	switch name {
	case "enter":
		return tea.KeyPressMsg{Code: tea.KeyEnter}
	case "esc":
		return tea.KeyPressMsg{Code: tea.KeyEscape}
	case "down":
		return tea.KeyPressMsg{Code: tea.KeyDown}
	}
	return tea.KeyPressMsg{Code: []rune(name)[0], Text: name}
}

func TestTopModel(t *testing.T) {
	t.Parallel()
	started := newTopModel(func() (fleet.Map, error) { return sampleFleet(), nil }, topOptions{interval: time.Second, order: "name"})
	loaded := press(started, tea.WindowSizeMsg{Width: 140, Height: 40}, started.load())
	crowded := sampleFleet()
	crowded.VMs[0].Pods = slices.Repeat(crowded.VMs[0].Pods, 60)
	for name, test := range map[string]struct {
		model   topModel
		want    []string
		without []string
	}{
		"before_the_first_read": {started, []string{"reading …"}, nil},
		"all_hosts": {loaded, []string{
			"2 hosts, 2 VMs, 2 pods, 1 pending pod price 3.000/h 2190.00/month", "pve1 up CPUs ■■■········· 4/16", "VM 20001 s1.4VCPU-16GB default Ready",
			"Pending pods shop/waits pve1: 1 CPUs free, 2 required", "Activity launching nodeclaim gpu-b", "Events (UTC)", "more lines", "sort: name", "nodepool: all", "12:00:00 UTC",
		}, nil},
		"sorted_by_price": {press(loaded, "s", "s", "s"), []string{"sort: price", "20002 s1.4VCPU-16GB gpu Ready 2.000/h ● home/pve1"}, nil},
		"one_nodepool":    {press(loaded, "f", "f"), []string{"nodepool: gpu", "20002"}, []string{"20001"}},
		"all_nodepools":   {press(loaded, "f", "f", "f"), []string{"nodepool: all", "20001"}, nil},
		"host":            {press(loaded, "enter"), []string{"host home/pve1", "NUMA cell 1 memory", "VM 20001"}, []string{"20002", "Pending"}},
		"VM":              {press(loaded, "enter", "enter"), []string{"VM 20001 on home/pve1", "nodeclaim default-a, nodepool default, node default-a", "1 pod ● shop/web-default 500m CPU"}, nil},
		"VM_of_the_tree":  {press(loaded, "down", "down", "down", "enter"), []string{"VM 20002 on home/pve2", "shop/web-gpu"}, nil},
		"back":            {press(loaded, "enter", "enter", "esc", "esc"), []string{"20001", "20002"}, nil},
		"many_pods":       {press(loaded, fleetMsg{fleet: crowded}, "enter", "enter"), []string{"60 pods", "more lines"}, nil},
		"vanished":        {press(loaded, "enter", fleetMsg{}), []string{"host home/pve1 no longer exists"}, nil},
		"failed_read":     {press(loaded, fleetMsg{err: errors.New("connection refused")}), []string{"20001", "reading failed, retrying: connection refused"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := visible(test.model.View().Content)
			for _, want := range test.want {
				NewWithT(t).Expect(found).To(ContainSubstring(want))
			}
			for _, unwanted := range test.without {
				NewWithT(t).Expect(found).NotTo(ContainSubstring(unwanted))
			}
		})
	}
}

// A read that a key starts adds no timer: each would read Proxmox once per interval.
func TestTopModelTimer(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	loaded := press(newTopModel(func() (fleet.Map, error) { return sampleFleet(), nil }, topOptions{interval: time.Hour}), fleetMsg{})
	reading, read := loaded.Update(keyPress("r"))
	done, next := reading.Update(read())
	g.Expect(next).To(BeNil())
	_, next = done.Update(tickMsg{})
	g.Expect(next).NotTo(BeNil())
}

func TestTopModelSize(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for width := 10; width < 200; width += 19 {
		for height := 2; height < 70; height += 3 {
			m := press(newTopModel(nil, topOptions{order: "name"}), tea.WindowSizeMsg{Width: width, Height: height}, fleetMsg{fleet: sampleFleet()})
			lines := strings.Split(m.View().Content, "\n")
			g.Expect(lines).To(HaveLen(height))
			for _, line := range lines {
				g.Expect(len([]rune(escape.ReplaceAllString(line, "")))).To(BeNumerically("<=", width), "%dx%d: %q", width, height, line)
			}
		}
	}
}

func TestTopPlain(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newEnv(t)
		createController(w, "karpenter")
		class := w.Class()
		w.Pool(class)
		claim := w.Launched("a", class)
		w.Node(claim)
		createPod(w, "runs", "a")
		waits := createPod(w, "waits", "")
		createRefusal(w, waits, "pve1: 1 CPUs free, 2 required")
		w.Clock.Advance(10 * time.Second) // Proxmox lists that the VM runs

		out, err := runIn(w, "top", "--nodepool", "pool")
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(out).NotTo(ContainSubstring("\x1b"), "no escape sequences")
		w.Expect(visible(out)).To(And(
			ContainSubstring("1 host, 1 VM, 1 pod, 1 pending"), ContainSubstring("pve1 up"), ContainSubstring("VM %d", w.Intent(claim).VMID),
			ContainSubstring("shop/waits pve1: 1 CPUs free, 2 required"), ContainSubstring("launching nodeclaim a"),
			ContainSubstring("NoHostFits pod/waits"),
		))
		data := runJSON[struct {
			Hosts []struct {
				Host string
				CPUs fleet.Usage
			}
			VMs []struct {
				NodeClaim, Phase string
				VMID             int
				Launch           []struct{ AfterSeconds float64 }
				Pods             []struct{ Name string }
			}
			PendingPods []struct{ Reason string }
			Problems    []string
		}](w, "top")
		w.Expect(data.Hosts).To(HaveExactElements(And(HaveField("Host", "pve1"), HaveField("CPUs.VMs", int64(w.Intent(claim).Cores)))))
		w.Expect(data.VMs).To(HaveExactElements(And(HaveField("NodeClaim", "a"), HaveField("VMID", w.Intent(claim).VMID), HaveField("Phase", "joined"),
			HaveField("Launch", Not(BeEmpty())), HaveField("Pods", HaveExactElements(HaveField("Name", "runs"))))))
		w.Expect(data.PendingPods).To(HaveExactElements(HaveField("Reason", "pve1: 1 CPUs free, 2 required")))
		w.Expect(data.Problems).NotTo(BeNil(), "an empty list, not null")
		for want, args := range map[string][]string{
			`--nodepool: found "absent", want one of [pool]`:                 {"--nodepool", "absent"},
			`--sort: found "age", want one of [name CPUs memory price pods]`: {"--sort", "age"},
			"--interval: found 1ms, want at least 1s":                        {"--interval", "1ms"},
		} {
			w.Expect(errorOf(runIn(w, append([]string{"top"}, args...)...))).To(MatchError(want))
		}
	})
}

// createRefusal creates the event that no Node can be created for a pod.
func createRefusal(w *testenv.Env, pod *corev1.Pod, message string) {
	w.T.Helper()
	createEvent(w, pod, time.Now(), corev1.EventTypeWarning, v1alpha1.EventNoHostFits, message)
}

// A host is shown as awake when its record is gone, also if another cluster is unreachable.
func TestTopAfterSleep(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newEnv(t, testenv.Hosts(2))
		reachable, unreachable := testenv.ClusterConfig(w.Sim, testenv.Region), testenv.ClusterConfig(w.Sim, "region-2")
		unreachable.URLs = []string{"https://127.0.0.1:1"}
		settings := operator.Settings{Options: operator.DefaultOptions(), Cloud: proxmox.Config{Clusters: []proxmox.ClusterConfig{reachable, unreachable}}}
		settings.Options.SystemNamespace = w.Name
		v, err := newView(settings, testenv.ClientOptions(w.Sim))
		w.Expect(err).NotTo(HaveOccurred())
		source, err := newFleetSource(t.Context(), w.Kube, v)
		w.Expect(err).NotTo(HaveOccurred())
		store, name := power.Store{Kube: w.Kube, Namespace: w.Name, KubeCluster: w.KubeCluster}, observed.HostName{Region: testenv.Region, Host: "pve2"}
		expectSleep := func(record *declared.Sleep, state declared.SleepState) {
			w.Expect(store.Put(t.Context(), name, record)).To(Succeed())
			w.Expect(source.read(t.Context())).To(HaveField("Hosts", ContainElement(And(HaveField("Name", "pve2"), HaveField("Sleep", string(state))))))
		}
		expectSleep(&declared.Sleep{State: declared.Waking, KubeCluster: w.KubeCluster}, declared.Waking)
		expectSleep(nil, "")
	})
}
