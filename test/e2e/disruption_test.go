// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestConsolidation runs pods of many sizes on Nodes of exact size and removes a third of them. Consolidation must end, with
// cheaper Nodes.
func TestConsolidation(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it creates many VMs"))
	const apps = 15
	e := newEnv(t, setup{})
	p := e.newNodePool(t, "exact", func(kit *harness.Kit) {
		kit.Pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration(karpv1.Never)
		kit.Class.Spec.VMSize = v1alpha1.VMSizing{Policy: v1alpha1.VMSizeExact, Max: v1alpha1.VMSize{CPU: 4, Memory: "16Gi"}} // several Nodes
	})
	random, milliCPU, mib := rand.New(rand.NewPCG(18, 0)), []int64{50, 100, 250, 500, 1000}, []int64{64, 128, 256, 512, 1024, 1500}
	for n := range apps {
		p.deployPods(t, 1+random.Int32N(3), func(d *appsv1.Deployment) {
			d.Name = fmt.Sprintf("%s-%d", p.name, n)
			d.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
				corev1.ResourceCPU:    *resource.NewMilliQuantity(milliCPU[random.IntN(len(milliCPU))], resource.DecimalSI),
				corev1.ResourceMemory: *resource.NewQuantity(mib[random.IntN(len(mib))]<<20, resource.BinarySI),
			}
		})
	}
	before := 0.0
	p.eventually(t, "all pods to run on settled Nodes", func(g Gomega) {
		before = p.priceOfSettled(g)
		g.Expect(before).To(BeNumerically(">", 0))
	})

	for n := range apps / 3 {
		must(t, harness.Scale(e.ctx, e.kube, fmt.Sprintf("%s-%d", p.name, 3*n), 0))
	}
	p.patch(t, p.kit.Pool, `{"spec":{"disruption":{"consolidateAfter":"1s"}}}`)
	// Karpenter needs 10 and 15 seconds to find and validate a consolidation.
	const quiet = 27 * time.Second
	changed, known := time.Now(), sets.Set[types.UID]{}
	p.within(t, 2*timeout(), "consolidation to end", func(g Gomega) {
		now := sets.Set[types.UID]{}
		for _, claim := range p.claims(g) {
			if claim.DeletionTimestamp.IsZero() {
				now.Insert(claim.UID)
			}
		}
		if !now.Equal(known) {
			changed, known = time.Now(), now
		}
		g.Expect(p.priceOfSettled(g)).To(And(BeNumerically(">", 0), BeNumerically("<", before)))
		g.Expect(time.Since(changed)).To(BeNumerically(">", quiet))
	})
}

// priceOfSettled returns the price of all Nodes. It fails unless all pods run and all Nodes are settled.
func (p *nodePool) priceOfSettled(g Gomega) (price float64) {
	pods := &corev1.PodList{}
	g.Expect(p.kube.List(p.ctx, pods)).To(Succeed())
	for i := range pods.Items {
		g.Expect(harness.PodReady(&pods.Items[i])).To(BeTrue(), "pod %s is not ready", pods.Items[i].Name)
	}
	for _, claim := range p.claims(g) {
		g.Expect(p.settled(&claim)).To(Succeed())
		size, ok := instancetype.DefaultCatalog().Get(claim.Labels[corev1.LabelInstanceTypeStable])
		g.Expect(ok).To(BeTrue())
		price += float64(size.CPUs) + float64(size.MemoryBytes)/float64(4<<30)
	}
	return price
}

const driftNodes = 3

// TestDrift changes the image of a ProxmoxTemplate while Nodes run, and then puts a host into
// maintenance. Nodes must be replaced one after the other according to the disruption budget, and
// never more than one pod may be unavailable. In the end Proxmox must store as much as before.
func TestDrift(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it can download images from this process"))
	// The list of hosts contains the HA manager's state since 9.2.
	e := newEnv(t, setup{version: "9.2", durations: "template-grace-period=2s"})
	g := NewWithT(t)
	before := e.holdings(g)
	images := testenv.ServeImages(t, 256<<10).URL
	template := &v1alpha1.ProxmoxTemplate{ObjectMeta: metav1.ObjectMeta{Name: "managed"}, Spec: v1alpha1.ProxmoxTemplateSpec{
		SourceImage: v1alpha1.SourceImage{URL: images + "/noble-1.img"}, StorageIDs: []string{"local", "local-lvm"},
		Network: []v1alpha1.NetworkInterface{{Bridge: "vmbr0"}}, Agent: &v1alpha1.Agent{Enabled: true},
	}}
	must(t, e.kube.Create(e.ctx, template))
	p := e.newNodePool(t, "managed", func(kit *harness.Kit) {
		kit.Class.Spec.InstanceTemplateRef = v1alpha1.InstanceTemplateReference{Kind: v1alpha1.ProxmoxTemplateKind, Name: template.Name}
		kit.Pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration(karpv1.Never)
		kit.Pool.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "1"}}
	})
	p.deployPods(t, driftNodes, onePerNode, onePerHost, func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.TopologySpreadConstraints[0].WhenUnsatisfiable = corev1.ScheduleAnyway // during maintenance
	})
	p.waitForPods(t, driftNodes)
	first := p.waitForImage(t, "")
	e.eventually(t, "the template on all hosts", func(g Gomega) {
		g.Expect(e.kube.Get(e.ctx, client.ObjectKeyFromObject(p.kit.Class), p.kit.Class)).To(Succeed())
		g.Expect(p.kit.Class.Status.SelectedZones).To(HaveLen(3))
	})
	one, fewest := intstr.FromInt32(1), driftNodes
	must(t, p.kube.Create(p.ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: p.name},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": p.name}}},
	}))
	stopCounting := p.monitor(t, func(g Gomega) { fewest = min(fewest, p.readyPods(g)) })

	t.Run("image_change", func(t *testing.T) {
		initial := e.stored(NewWithT(t))
		stopMonitor := p.monitor(t, p.checkRollout)
		p.patch(t, template, fmt.Sprintf(`{"spec":{"sourceImage":{"url":%q}}}`, images+"/noble-2.img"))
		p.waitForImage(t, first)
		e.eventually(t, "the old generation to be deleted", func(g Gomega) { g.Expect(e.stored(g)).To(Equal(initial)) })
		stopMonitor()
	})
	t.Run("maintenance", func(t *testing.T) {
		host := p.vms(NewWithT(t))[0].Host
		must(t, e.proxmox.SetMaintenance(host, true))
		e.eventually(t, "the host to be drained", func(g Gomega) { g.Expect(p.vms(g)).NotTo(ContainElement(HaveField("Host", host))) })
		must(t, e.proxmox.SetMaintenance(host, false))
		p.waitForPods(t, driftNodes)
	})
	stopCounting()
	g.Expect(fewest).To(Equal(driftNodes-1), "ready pods; the PodDisruptionBudget allows one to be unavailable")

	p.deleteClaims(t)
	must(t, e.kube.Delete(e.ctx, p.kit.Pool))
	must(t, e.kube.Delete(e.ctx, template))
	e.expectUnchanged(t, before)
	e.eventually(t, "the template to be deleted", func(g Gomega) {
		g.Expect(e.kube.Get(e.ctx, client.ObjectKeyFromObject(template), template)).To(MatchError(apierrors.IsNotFound, "IsNotFound"))
	})
}

// waitForImage waits until all Nodes run from the same image, different from before, and
// returns it.
func (p *nodePool) waitForImage(t *testing.T, before string) (image string) {
	t.Helper()
	p.within(t, 2*timeout(), "nodes of one new image", func(g Gomega) {
		claims := p.claims(g)
		g.Expect(claims).To(HaveLen(driftNodes))
		image = claims[0].Status.ImageID
		g.Expect(image).NotTo(BeElementOf("", before))
		for i := range claims {
			g.Expect(claims[i].Status.ImageID).To(Equal(image))
			g.Expect(p.settled(&claims[i])).To(Succeed())
		}
	})
	return image
}

// stored returns how many guests and volumes Proxmox stores.
func (e *env) stored(g Gomega) [2]int {
	all := e.holdings(g)
	return [2]int{len(all.Guests), len(all.Volumes)}
}

// monitor runs a check until it fails or stop is called.
func (p *nodePool) monitor(t *testing.T, check func(Gomega)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(p.ctx)
	g := NewGomega(func(message string, _ ...int) {
		if ctx.Err() == nil {
			t.Error(message)
			cancel()
		}
	})
	var monitor sync.WaitGroup
	monitor.Go(func() {
		for ctx.Err() == nil {
			check(g)
			time.Sleep(pollInterval / 2)
		}
	})
	stop = func() { cancel(); monitor.Wait() }
	t.Cleanup(stop)
	return stop
}

// checkRollout checks that the class is ready on every host and that at most one Node is being deleted.
func (p *nodePool) checkRollout(g Gomega) {
	class, going := &v1alpha1.ProxmoxNodeClass{}, 0
	g.Expect(p.kube.Get(p.ctx, client.ObjectKeyFromObject(p.kit.Class), class)).To(Succeed())
	g.Expect(class.StatusConditions().Root().IsTrue()).To(BeTrue(), "%v", class.Status.Conditions)
	g.Expect(class.Status.SelectedZones).To(HaveLen(3))
	claims := p.claims(g)
	for _, claim := range claims {
		if !claim.DeletionTimestamp.IsZero() {
			going++
		}
	}
	g.Expect(going).To(BeNumerically("<=", 1), "Nodes that are being deleted; the budget is 1")
	g.Expect(len(claims)).To(BeNumerically("<=", driftNodes+2))
}

// readyPods returns the number of pods that are ready.
func (p *nodePool) readyPods(g Gomega) (ready int) {
	pods, err := harness.Pods(p.ctx, p.kube, p.name)
	g.Expect(err).NotTo(HaveOccurred())
	for i := range pods {
		if harness.PodReady(&pods[i]) {
			ready++
		}
	}
	return ready
}

// TestPowerManagement lets the load rise and fall. Hosts sleep while they are not needed, and are
// woken for pods, also by another controller.
func TestPowerManagement(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it shuts hosts down"))
	settings := filepath.Join(t.TempDir(), "hosts.json")
	write := func(mode string) {
		replaceFile(t, settings, fmt.Sprintf(`{"*": {"*": {"powermanagement": %q, "idletime": "3s", "waketimeout": "2m", "wattsidle": 60, "wattsfull": 180}}}`, mode))
	}
	write("Enabled")
	e := newEnv(t, setup{hosts: 5, scenario: powerScenario, args: []string{"--node-setting-file", settings}})
	p := e.newNodePool(t, "power", nil)
	p.deployPods(t, 2, onePerNode)
	p.waitForPods(t, 2)
	e.waitForSleeping(t, 2)

	// Three hosts that are awake have the capacity for six Nodes.
	const many = 9
	must(t, harness.Scale(e.ctx, e.kube, p.name, many))
	e.eventually(t, "a host to be woken", func(g Gomega) { g.Expect(e.sleepRecords(g)).To(ContainElement(HaveField("State", declared.Waking))) })
	e.controller.Kill()
	must(t, e.controller.Start(e.ctx))
	p.waitForPods(t, many)
	e.waitForSleeping(t, 0)

	p.scale(t, 2)
	e.waitForSleeping(t, 2)
	families, err := e.controller.MetricFamilies(e.ctx)
	must(t, err)
	for _, name := range slices.DeleteFunc(listedMetrics(t), func(name string) bool { return !powerMetrics.MatchString(name) }) {
		NewWithT(t).Expect(families).To(HaveKey(name))
	}
	// Hosts return when power management is turned off.
	write("None")
	e.waitForSleeping(t, 0)
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
		host.ShutdownTime, host.BootTime = pvesim.Duration(10*time.Second), pvesim.Duration(2*speed*time.Second)
	}
}

// sleepRecords returns the records about hosts that were shut down.
func (e *env) sleepRecords(g Gomega) (records []declared.Sleep) {
	stored := &corev1.ConfigMap{}
	g.Expect(e.kube.Get(e.ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: power.ConfigMapName}, stored)).To(Succeed())
	for _, text := range stored.Data {
		var record declared.Sleep
		g.Expect(json.Unmarshal([]byte(text), &record)).To(Succeed())
		records = append(records, record)
	}
	return records
}

func (e *env) waitForSleeping(t *testing.T, want int) {
	t.Helper()
	e.within(t, 3*timeout(), fmt.Sprintf("%d sleeping hosts", want), func(g Gomega) {
		records := e.sleepRecords(g)
		g.Expect(records).To(HaveLen(want))
		for _, record := range records {
			g.Expect(record.State).To(Equal(declared.Asleep))
		}
	})
}
