// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// instanceType is the size of the VMs.
const instanceType = "c1.2VCPU-4GB"

// teamTaint is a taint of the NodePools.
var teamTaint = corev1.Taint{Key: "team", Value: "blue", Effect: corev1.TaintEffectNoSchedule}

// node is a NodeClaim with its Node and VM.
type node struct {
	*env
	c     testCase
	claim *karpv1.NodeClaim
	node  *corev1.Node
	vm    harness.Guest
}

// run launches the Nodes of a case, checks and deletes them.
func (e *env) run(t *testing.T, c testCase) {
	if _, err := os.Stat(filepath.Join(required(t, "GUEST_IMAGES"), c.sourceImage())); err != nil {
		t.Fatalf("%v; make guest-image builds images, with SUITE=bookworm that of Debian 12", err)
	}
	before, err := e.proxmox.API.Holdings(t.Context())
	must(t, err)
	defer func() {
		if t.Failed() {
			e.dump(t)
			e.cleanUp(t, c)
		}
	}()
	e.startController(t, c.shutdownTimeout())
	deleteRecipe := e.apply(t, c)
	must(t, e.kube.Create(t.Context(), c.deployment()))
	nodes := e.launch(t, c)
	for _, n := range nodes {
		n.checkExpected(t)
	}
	if len(nodes) > 1 {
		e.podsReachEachOther(t, c)
	}
	if c.reset && !t.Failed() {
		nodes[0].rejoinsAfterReset(t)
	}
	e.delete(t, c, nodes)
	deleteRecipe()
	e.expectUnchanged(t, before)
}

// apply applies the recipe with the values of a case. The returned function deletes it.
func (e *env) apply(t *testing.T, c testCase) (remove func()) {
	t.Helper()
	kit, err := harness.NewKit(c.name, e.server(t, c))
	must(t, err)
	kit.Template.Spec.TemplateName = c.template
	pool := &kit.Pool.Spec
	pool.Template.Labels = map[string]string{"team": "blue"}
	pool.Template.Spec.Taints = []corev1.Taint{teamTaint}
	pool.Template.Spec.Requirements = append(pool.Template.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{
		Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{instanceType},
	})
	pool.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("Never")
	objects := []client.Object{kit.Pool, kit.Class}
	if c.template == "" {
		kit.Template.Spec.TemplateName = "unused"
		template := e.newTemplate(c)
		objects = append(objects, template)
		if c.builder {
			secret := e.prepareTemplate(t, template)
			must(t, e.kube.Create(t.Context(), secret))
			objects = append(objects, secret)
		}
		kit.Class.Spec.InstanceTemplateRef = v1alpha1.InstanceTemplateReference{Kind: v1alpha1.ProxmoxTemplateKind, Name: template.Name}
		must(t, e.kube.Create(t.Context(), template))
		e.waitForTemplate(t, template)
	}
	if c.change != nil {
		c.change(t, e, kit)
	}
	must(t, kit.Apply(t.Context(), e.kube))
	return func() {
		for _, object := range objects {
			must(t, e.kube.Delete(t.Context(), object))
			e.within(t, deleteTimeout, object.GetName()+" to be deleted", func(ctx context.Context) error {
				return notFound(e.kube.Get(ctx, client.ObjectKeyFromObject(object), object), object.GetName())
			})
		}
	}
}

// newTemplate returns the template of a case, as in docs/getting-started.md.
func (e *env) newTemplate(c testCase) *v1alpha1.ProxmoxTemplate {
	template := &v1alpha1.ProxmoxTemplate{ObjectMeta: metav1.ObjectMeta{Name: c.name}}
	template.Spec = v1alpha1.ProxmoxTemplateSpec{
		SourceImage: v1alpha1.SourceImage{URL: e.images + "/" + c.sourceImage(), ImageName: c.name + ".qcow2"},
		StorageIDs:  []string{"local", "local-lvm"}, Machine: c.machine, BIOS: c.bios,
		Agent: &v1alpha1.Agent{Enabled: true}, VGA: &v1alpha1.VGA{Type: "serial0"}, Network: []v1alpha1.NetworkInterface{{Bridge: c.network()}},
	}
	return template
}

// waitForTemplate waits until the template can be used. A builder VM needs minutes.
func (e *env) waitForTemplate(t *testing.T, template *v1alpha1.ProxmoxTemplate) {
	t.Helper()
	began := time.Now()
	e.within(t, 2*bootTimeout, "the template to be ready", func(ctx context.Context) error {
		if err := e.kube.Get(ctx, client.ObjectKeyFromObject(template), template); err != nil {
			return err
		}
		c := template.StatusConditions().Get(v1alpha1.ConditionTemplateUpToDate)
		if !c.IsTrue() {
			return fmt.Errorf("the condition is %v", c)
		}
		return nil
	})
	t.Logf("the template was ready after %.0f s", time.Since(began).Seconds())
}

// deployment returns a Deployment with one pod per Node. They use the Node's DNS servers, as CoreDNS does.
func (c testCase) deployment() *appsv1.Deployment {
	d := harness.Deployment(c.name, int32(c.count()))
	pod := &d.Spec.Template.Spec
	pod.NodeSelector = map[string]string{karpv1.NodePoolLabelKey: c.name}
	pod.Tolerations = []corev1.Toleration{{Key: teamTaint.Key, Operator: corev1.TolerationOpExists}}
	pod.DNSPolicy = corev1.DNSDefault
	pod.Containers[0].Image, pod.Containers[0].Args = testImage, []string{"serve", ":8080"}
	pod.Containers[0].ImagePullPolicy = corev1.PullNever
	pod.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{LabelSelector: d.Spec.Selector, TopologyKey: corev1.LabelHostname}},
	}}
	return d
}

// launch waits for the Nodes, installs a pod network on them, and returns when the pods run and the boot data is
// deleted.
func (e *env) launch(t *testing.T, c testCase) []*node {
	t.Helper()
	var nodes []*node
	e.within(t, bootTimeout, "all Nodes to register", func(ctx context.Context) (err error) {
		nodes, err = e.registered(ctx, c)
		return err
	})
	pods := harness.NewPodNetwork(e.guests)
	for _, n := range nodes {
		t.Logf("Node %s registered: VM %d, addresses %v, console %s", n.claim.Name, n.vm.VMID, internalIPs(n.node), e.guests.ConsoleLog(n.vm.VMID))
		if c.prepare != nil {
			c.prepare(t, n)
		}
		e.within(t, agentTimeout, "the pod network to be installed", func(ctx context.Context) error {
			return pods.Add(ctx, n.vm.VMID, internalIPs(n.node)[0])
		})
	}
	e.waitForPods(t, c)
	for _, n := range nodes {
		e.within(t, bootTimeout, "the boot data to be deleted", n.settled)
		line, err := harness.ReadTimeline(t.Context(), e.kube, n.claim)
		must(t, err)
		t.Logf("timeline of %s:\n%s", n.claim.Name, line)
	}
	return nodes
}

// waitForPods waits until all pods run, or have no network, which a check reports.
func (e *env) waitForPods(t *testing.T, c testCase) {
	t.Helper()
	e.within(t, bootTimeout, "all pods to run", func(ctx context.Context) error {
		pods, err := harness.Pods(ctx, e.kube, c.name)
		if err != nil {
			return err
		}
		waiting := len(pods) != c.count()
		for i := range pods {
			if harness.PodReady(&pods[i]) {
				continue
			}
			failure, err := e.networkFailure(ctx, &pods[i])
			if err != nil {
				return err
			}
			waiting = waiting || failure == ""
		}
		if waiting {
			return errors.New(podStates(pods))
		}
		return nil
	})
}

func podStates(pods []corev1.Pod) string {
	var out []string
	for _, p := range pods {
		out = append(out, fmt.Sprintf("pod %s on node %q: %s %+v", p.Name, p.Spec.NodeName, p.Status.Phase, p.Status.ContainerStatuses))
	}
	return strings.Join(out, "; ")
}

// registered returns the Nodes of a case. It fails if one is missing.
func (e *env) registered(ctx context.Context, c testCase) ([]*node, error) {
	list := &karpv1.NodeClaimList{}
	if err := e.kube.List(ctx, list, client.MatchingLabels{karpv1.NodePoolLabelKey: c.name}); err != nil {
		return nil, err
	}
	if len(list.Items) != c.count() {
		return nil, fmt.Errorf("there are %d NodeClaims, want %d", len(list.Items), c.count())
	}
	var nodes []*node
	for i := range list.Items {
		n := &node{env: e, c: c, claim: &list.Items[i], node: &corev1.Node{}}
		if err := n.readVM(ctx); err != nil {
			return nil, err
		}
		if err := e.kube.Get(ctx, client.ObjectKey{Name: n.claim.Name}, n.node); err != nil {
			return nil, fmt.Errorf("%w; the last line of the console of VM %d: %q", err, n.vm.VMID, harness.Tail(e.guests.ConsoleLog(n.vm.VMID), 1))
		}
		if len(internalIPs(n.node)) == 0 {
			return nil, fmt.Errorf("node %s has no InternalIP", n.node.Name)
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// readVM reads the VM of the NodeClaim.
func (n *node) readVM(ctx context.Context) (err error) {
	n.vm, err = n.proxmox.API.VMOf(ctx, n.claim)
	return err
}

// read updates claim, Node and VM.
func (n *node) read(ctx context.Context) error {
	return errors.Join(n.kube.Get(ctx, client.ObjectKeyFromObject(n.claim), n.claim),
		n.kube.Get(ctx, client.ObjectKeyFromObject(n.node), n.node), n.readVM(ctx))
}

// settled returns an error unless the Node is initialized and its boot data deleted.
func (n *node) settled(ctx context.Context) error {
	if err := n.read(ctx); err != nil {
		return err
	}
	if c := n.claim.StatusConditions().Get(karpv1.ConditionTypeInitialized); !c.IsTrue() {
		return fmt.Errorf("NodeClaim %s is not initialized: %s", n.claim.Name, c.Message)
	}
	if mark, _ := ownership.Read(n.vm.Notes()); mark.Boot != nil {
		return fmt.Errorf("VM %d still has its boot drive", n.vm.VMID)
	}
	return nil
}

// internalIPs returns the addresses of a Node in order.
func internalIPs(node *corev1.Node) []string {
	var out []string
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			out = append(out, a.Address)
		}
	}
	return out
}

// dial connects to a port of the guest.
func (n *node) dial(ctx context.Context, port string) (net.Conn, error) {
	return n.guests.Network.Dial(ctx, n.c.network(), net.JoinHostPort(internalIPs(n.node)[0], port))
}

// expect reports a failure unless the output of a shell script matches a regular expression.
func (n *node) expect(t testing.TB, what, script, pattern string) {
	t.Helper()
	if found := n.run(t, script); !regexp.MustCompile(pattern).MatchString(found) {
		t.Errorf("%s: found %q, want %s", what, found, pattern)
	}
}

// run runs a shell script as root in the guest and returns its output without surrounding space. It fails if the script
// fails, or does not end within the timeout.
func (n *node) run(t testing.TB, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), agentTimeout)
	defer cancel()
	out, err := n.guests.Exec(ctx, n.vm.VMID, "/bin/sh", "-ec", script)
	if err != nil {
		t.Fatalf("script %q: %v", script, err)
	}
	return strings.TrimSpace(out)
}
