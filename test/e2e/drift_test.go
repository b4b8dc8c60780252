// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

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
	fewest := p.limitDisruption(t)

	t.Run("image_change", func(t *testing.T) {
		initial := e.usage(NewWithT(t))
		stopMonitor := p.monitorRollout(t)
		p.patch(t, template, fmt.Sprintf(`{"spec":{"sourceImage":{"url":%q}}}`, images+"/noble-2.img"))
		p.waitForImage(t, first)
		e.eventually(t, "the old generation to be deleted", func(g Gomega) { g.Expect(e.usage(g)).To(Equal(initial)) })
		stopMonitor()
	})
	t.Run("maintenance", func(t *testing.T) {
		host := p.vms(NewWithT(t))[0].Host
		must(t, e.proxmox.SetMaintenance(host, true))
		e.eventually(t, "the host to be drained", func(g Gomega) { g.Expect(p.vms(g)).NotTo(ContainElement(HaveField("Host", host))) })
		must(t, e.proxmox.SetMaintenance(host, false))
		p.waitForPods(t, driftNodes)
	})
	g.Expect(fewest.Load()).To(BeNumerically("==", driftNodes-1), "ready pods; the PodDisruptionBudget allows one to be unavailable")

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

// usage is what Proxmox stores: our templates, images, and the used bytes of all storages.
type usage struct {
	templates, images int
	used              int64
}

func (e *env) usage(g Gomega) (out usage) {
	all := e.holdings(g)
	for _, guest := range all.Guests {
		if guest.Template && strings.Contains(guest.Notes(), e.cluster) {
			out.templates++
		}
	}
	for _, volume := range all.Volumes {
		if strings.Contains(volume.ID, ":import/") {
			out.images++
		}
	}
	hosts, err := e.api.Hosts(e.ctx)
	g.Expect(err).NotTo(HaveOccurred())
	for host := range hosts {
		var rows []struct{ Used int64 }
		g.Expect(e.api.Call(e.ctx, http.MethodGet, "/nodes/"+host+"/storage", nil, &rows)).To(Succeed())
		for _, row := range rows {
			out.used += row.Used
		}
	}
	return out
}

// monitorRollout checks during a rollout that the class is ready on every host and that at
// most one Node is being deleted.
func (p *nodePool) monitorRollout(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(p.ctx)
	var monitor sync.WaitGroup
	monitor.Go(func() {
		for ctx.Err() == nil {
			class, list := &v1alpha1.ProxmoxNodeClass{}, &karpv1.NodeClaimList{}
			err := p.kube.Get(ctx, client.ObjectKeyFromObject(p.kit.Class), class)
			if err == nil && (!class.StatusConditions().Root().IsTrue() || len(class.Status.SelectedZones) != 3) {
				t.Errorf("the class had zones %v: %s", class.Status.SelectedZones, class.StatusConditions().Root().Message)
				return
			}
			err = p.kube.List(ctx, list)
			going := slices.DeleteFunc(slices.Clone(list.Items), func(c karpv1.NodeClaim) bool { return c.DeletionTimestamp.IsZero() })
			if err == nil && (len(going) > 1 || len(list.Items) > driftNodes+2) {
				t.Errorf("%d of %d nodes were being deleted, the budget is 1", len(going), len(list.Items))
				return
			}
			time.Sleep(pollInterval / 2)
		}
	})
	return func() { cancel(); monitor.Wait() }
}

// limitDisruption allows one pod of the Deployment, all of which are ready, to be unavailable. It
// returns the fewest pods that were ready at one time since.
func (p *nodePool) limitDisruption(t *testing.T) *atomic.Int64 {
	t.Helper()
	one, app := intstr.FromInt32(1), client.MatchingLabels{"app": p.name}
	must(t, p.kube.Create(p.ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: p.name},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one, Selector: &metav1.LabelSelector{MatchLabels: app}},
	}))
	events, err := p.kube.Watch(p.ctx, &corev1.PodList{}, client.InNamespace(metav1.NamespaceDefault), app)
	must(t, err)
	t.Cleanup(events.Stop)
	fewest := &atomic.Int64{}
	fewest.Store(driftNodes)
	go func() {
		ready := map[string]bool{}
		counted := false // all pods were seen
		for event := range events.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			delete(ready, pod.Name)
			if event.Type != watch.Deleted && pod.DeletionTimestamp.IsZero() && harness.PodReady(pod) {
				ready[pod.Name] = true
			}
			if counted = counted || len(ready) == driftNodes; counted {
				fewest.Store(min(fewest.Load(), int64(len(ready))))
			}
		}
	}()
	return fewest
}
