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
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestImageChange changes the image of a ProxmoxTemplate while nodes run. There must always be
// a template to clone from, nodes must be replaced one after the other according to the
// budget, and in the end Proxmox must store as much as before.
func TestImageChange(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it can download images from this process"), guestsThatJoin())
	e := newEnv(t, setup{args: []string{"--template-grace-period=2s"}})
	before, err := e.holdings(t.Context())
	must(t, err)
	images := testenv.ServeImages(t, 256<<10).URL
	template := newTemplate(images + "/noble-1.img")
	must(t, e.kube.Create(t.Context(), template))
	const nodes = 3
	p := e.newNodePool(t, "managed", func(kit *harness.Kit) {
		kit.Class.Spec.InstanceTemplateRef = v1alpha1.InstanceTemplateReference{Kind: v1alpha1.ProxmoxTemplateKind, Name: template.Name}
		kit.Pool.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "1"}}
		kit.Pool.Spec.Template.Spec.Requirements = append(kit.Pool.Spec.Template.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{
			Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"c1.2VCPU-4GB"},
		})
	})
	d := harness.Deployment(p.name, nodes)
	d.Spec.Template.Spec.NodeSelector = map[string]string{karpv1.NodePoolLabelKey: p.name}
	d.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1200m")} // one per node
	must(t, e.kube.Create(t.Context(), d))
	p.waitForPods(t, nodes)
	first := p.waitForImage(t, nodes, "")
	e.eventually(t, "the template on all hosts", func(ctx context.Context) error {
		class := &v1alpha1.ProxmoxNodeClass{}
		err := e.kube.Get(ctx, client.ObjectKeyFromObject(p.kit.Class), class)
		if err == nil && len(class.Status.SelectedZones) != 3 {
			err = fmt.Errorf("it is in zones %v", class.Status.SelectedZones)
		}
		return err
	})
	initial, err := e.usage(t.Context())
	must(t, err)

	stopMonitor := p.monitorRollout(t, nodes)
	must(t, e.kube.Get(t.Context(), client.ObjectKeyFromObject(template), template))
	stored := template.DeepCopy()
	template.Spec.SourceImage.URL = images + "/noble-2.img"
	must(t, e.kube.Patch(t.Context(), template, client.MergeFrom(stored)))
	p.waitForImage(t, nodes, first)
	p.waitForPods(t, nodes)
	e.eventually(t, "the old generation to be deleted", func(ctx context.Context) error {
		after, err := e.usage(ctx)
		if err == nil && after != initial {
			err = fmt.Errorf("usage is %+v, want %+v", after, initial)
		}
		return err
	})
	stopMonitor()

	p.scaleToZero(t)
	p.waitUntilGone(t)
	must(t, e.kube.Delete(t.Context(), p.kit.Pool))
	must(t, e.kube.Delete(t.Context(), template))
	e.expectUnchanged(t, before)
	e.eventually(t, "the template to be deleted", func(ctx context.Context) error {
		if err := e.kube.Get(ctx, client.ObjectKeyFromObject(template), template); client.IgnoreNotFound(err) != nil || err == nil {
			return fmt.Errorf("it still exists: %w", err)
		}
		return nil
	})
}

func newTemplate(imageURL string) *v1alpha1.ProxmoxTemplate {
	return &v1alpha1.ProxmoxTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: "managed"},
		Spec: v1alpha1.ProxmoxTemplateSpec{
			SourceImage: v1alpha1.SourceImage{URL: imageURL},
			StorageIDs:  []string{"local", "local-lvm"},
			Network:     []v1alpha1.NetworkInterface{{Bridge: "vmbr0"}},
			Agent:       &v1alpha1.Agent{Enabled: true},
		},
	}
}

// waitForImage waits until all nodes run from the same image, different from before, and
// returns it.
func (p *nodePool) waitForImage(t *testing.T, nodes int, before string) string {
	t.Helper()
	var image string
	p.within(t, 2*timeout(), fmt.Sprintf("%d nodes of one image", nodes), func(ctx context.Context) error {
		claims, err := p.claims(ctx)
		if err != nil {
			return err
		}
		if len(claims) != nodes {
			return fmt.Errorf("there are %d claims, want %d", len(claims), nodes)
		}
		image = claims[0].Status.ImageID
		for i := range claims {
			if claims[i].Status.ImageID != image || image == before || image == "" {
				return fmt.Errorf("claim %s has image %q", claims[i].Name, claims[i].Status.ImageID)
			}
			if err := settled(&claims[i]); err != nil {
				return err
			}
		}
		return nil
	})
	return image
}

// usage is what Proxmox stores: our templates, images, and the used bytes of all storages.
type usage struct {
	templates, images int
	used              int64
}

func (e *env) usage(ctx context.Context) (usage, error) {
	var out usage
	guests, err := e.api.Guests(ctx)
	if err != nil {
		return out, err
	}
	for _, guest := range guests {
		if guest.Template && strings.Contains(guest.Notes(), e.cluster) {
			out.templates++
		}
	}
	volumes, err := e.api.Volumes(ctx)
	if err != nil {
		return out, err
	}
	for _, volume := range volumes {
		if strings.Contains(volume.ID, ":import/") {
			out.images++
		}
	}
	hosts, err := e.api.Hosts(ctx)
	for host := range hosts {
		var rows []struct{ Used int64 }
		if err := e.api.Call(ctx, http.MethodGet, "/nodes/"+host+"/storage", nil, &rows); err != nil {
			return out, err
		}
		for _, row := range rows {
			out.used += row.Used
		}
	}
	return out, err
}

// monitorRollout checks during a rollout that the class is ready on every host and that at
// most one node is being deleted.
func (p *nodePool) monitorRollout(t *testing.T, nodes int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var monitor sync.WaitGroup
	monitor.Go(func() {
		for ctx.Err() == nil {
			class := &v1alpha1.ProxmoxNodeClass{}
			err := p.kube.Get(ctx, client.ObjectKey{Name: p.kit.Class.Name}, class)
			if err == nil && (!class.StatusConditions().Root().IsTrue() || len(class.Status.SelectedZones) != 3) {
				t.Errorf("the class had zones %v: %s", class.Status.SelectedZones, class.StatusConditions().Root().Message)
				return
			}
			claims, err := p.claims(ctx)
			going := slices.DeleteFunc(claims, func(c karpv1.NodeClaim) bool { return c.DeletionTimestamp.IsZero() })
			if err == nil && (len(going) > 1 || len(claims) > nodes+2) {
				t.Errorf("%d of %d nodes were being deleted, the budget is 1", len(going), len(claims))
				return
			}
			time.Sleep(pollInterval / 2)
		}
	})
	return func() { cancel(); monitor.Wait() }
}
