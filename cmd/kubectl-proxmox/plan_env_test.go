// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/unmanagedtemplate"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/whatif"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// planEnv is a Kubernetes cluster with Nodes, on two Hosts of 8 cores.
type planEnv struct {
	*testenv.Env
	class *v1alpha1.ProxmoxNodeClass
	dir   string
}

// planOptions are the options of a planEnv: two Hosts of 8 cores.
func planOptions(change func(*pvesim.Scenario)) []testenv.Option {
	return []testenv.Option{testenv.NoPolling(), testenv.Hosts(2), testenv.Scenario(func(s *pvesim.Scenario) {
		for i := range s.Hosts {
			s.Hosts[i].Cores = 8
		}
		if change != nil {
			change(s)
		}
	})}
}

// newPlanEnv adds a NodeClass, a NodePool, and a controller with arguments to an Env.
func newPlanEnv(env *testenv.Env, args ...string) *planEnv {
	env.T.Helper()
	w := &planEnv{Env: env, dir: env.T.TempDir()}
	w.useUnmanaged(w.Named("ubuntu"), v1alpha1.ProxmoxUnmanagedTemplateSpec{TemplateName: "ubuntu"})
	w.class = w.Class()
	setPoolStatus(env, w.Pool(w.class, func(p *karpv1.NodePool) { p.Name = w.class.Name }), nil)
	createController(env, "karpenter", append(args, "--node-setting-file=")...)
	return w
}

// useUnmanaged creates an unmanaged template, and makes the class use it if there is one.
func (w *planEnv) useUnmanaged(name string, spec v1alpha1.ProxmoxUnmanagedTemplateSpec) {
	w.T.Helper()
	template := w.Template(func(u *v1alpha1.ProxmoxUnmanagedTemplate) { u.Name, u.Spec = name, spec })
	unmanagedtemplate.Resolve(w.Inventory, template)
	w.Expect(w.Kube.Status().Update(w.T.Context(), template)).To(Succeed())
	if w.class != nil {
		w.useTemplate(v1alpha1.ProxmoxUnmanagedTemplateKind, name, template.Status.Zones)
	}
}

// useTemplate makes the class use another template object.
func (w *planEnv) useTemplate(kind, name string, zones []string) {
	w.T.Helper()
	testenv.Modify(w.Env, w.class, func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.InstanceTemplateRef = v1alpha1.InstanceTemplateReference{Kind: kind, Name: name}
	})
	w.class.Status.SelectedZones = zones
	w.MarkReady(w.class)
}

// addClaim adds a NodeClaim whose VM is on a Host and has not joined.
func (w *planEnv) addClaim(name, pool, host string) *karpv1.NodeClaim {
	w.T.Helper()
	return w.Created(name, w.class, testenv.OnHost(host), func(c *karpv1.NodeClaim) { c.Labels[karpv1.NodePoolLabelKey] = pool })
}

// addNode adds a Node on a Host, with a pod that requests CPUs. It returns its NodeClaim.
func (w *planEnv) addNode(name, pool, host, cpu string) *karpv1.NodeClaim {
	w.T.Helper()
	claim := w.addClaim(name, pool, host)
	labels := maps.Clone(claim.Labels)
	maps.Copy(labels, map[string]string{karpv1.NodeRegisteredLabelKey: "true", karpv1.NodeInitializedLabelKey: "true", corev1.LabelHostname: name})
	w.createNode(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: corev1.NodeSpec{ProviderID: claim.Status.ProviderID},
	}, claim.Status.Allocatable)
	claim.Status.NodeName = name
	setConditions(w.Env, claim, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized)
	w.PendingPod(strings.TrimPrefix(name, pool+"-"), cpu, func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "app", UID: "app", Controller: new(true)}}
		p.Spec.NodeName = name
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "PASSWORD", Value: "confidential"}}
		debug := corev1.EphemeralContainerCommon{Name: "debug", Image: "i", Command: []string{"confidential"}}
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: debug}}
	})
	return claim
}

// createNode creates a Node that is ready.
func (w *planEnv) createNode(node *corev1.Node, resources corev1.ResourceList) {
	w.T.Helper()
	w.Create(node)
	node.Status.Capacity, node.Status.Allocatable = resources, resources
	setNodeReady(w.Env, node, corev1.ConditionTrue)
}

// write writes an object to a file of the saved plan.
func (w *planEnv) write(name string, object any) string {
	w.T.Helper()
	content, err := yaml.Marshal(object)
	w.Expect(err).NotTo(HaveOccurred())
	return write(w.T, w.dir, name, string(content))
}

// changedClass returns the class as a manifest, with changes.
func (w *planEnv) changedClass(change func(*v1alpha1.ProxmoxNodeClass)) *v1alpha1.ProxmoxNodeClass {
	class := &v1alpha1.ProxmoxNodeClass{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: v1alpha1.ProxmoxNodeClassKind},
		ObjectMeta: metav1.ObjectMeta{Name: w.class.Name}, Spec: *w.class.Spec.DeepCopy(),
	}
	change(class)
	return class
}

// planSetup describes a saved plan.
type planSetup struct {
	scenario func(*pvesim.Scenario)
	// args are those of the controller, and save those of the command.
	args, save []string
	// objects creates objects.
	objects func(*planEnv)
}

// savedPlan is an inventory that was saved in a simulation, as of region home. The plans run without a
// simulation: core leaves goroutines behind.
type savedPlan struct {
	*WithT
	t   *testing.T
	dir string
}

func savePlan(t *testing.T, setup planSetup) *savedPlan {
	t.Helper()
	s := &savedPlan{NewWithT(t), t, t.TempDir()}
	write(t, s.dir, "web.yaml", fmt.Sprintf(webDeployment, 3))
	write(t, s.dir, "many.yaml", fmt.Sprintf(webDeployment, 9))
	settings := write(t, s.dir, "settings.json", `{"*": {"*": {"cpuratio": 2}}}`)
	file := filepath.Join(s.dir, "saved.json")
	synctest.Test(t, func(t *testing.T) {
		w := newPlanEnv(newEnv(t, planOptions(setup.scenario)...), setup.args...)
		w.dir = s.dir
		w.write("class.yaml", w.changedClass(func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.BootDevice.Size = "40G" }))
		if setup.objects != nil {
			setup.objects(w)
		}
		args := []string{"plan", "--save", file}
		for _, arg := range setup.save {
			args = append(args, strings.Replace(arg, "settings.json", settings, 1))
		}
		w.Expect(runIn(w.Env, args...)).To(Equal("saved the inventory to " + file + "\n"))
	})
	content, err := os.ReadFile(file)
	s.Expect(err).NotTo(HaveOccurred())
	write(t, s.dir, "saved.json", strings.ReplaceAll(string(content), testenv.Region, "home"))
	return s
}

// run runs plan on the saved inventory. Files in the command are those of the plan.
func (s *savedPlan) run(command string) (string, error) {
	s.t.Helper()
	args := []string{"plan", "--inventory", filepath.Join(s.dir, "saved.json")}
	for _, arg := range strings.Fields(command) {
		if filepath.Ext(arg) != "" {
			arg = filepath.Join(s.dir, arg)
		}
		args = append(args, arg)
	}
	return run(s.t, args...)
}

// plan returns the plan of a command.
func (s *savedPlan) plan(command string) (plan whatif.Plan) {
	s.t.Helper()
	out, err := s.run(command + " -o json")
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(json.Unmarshal([]byte(out), &plan)).To(Succeed())
	return plan
}
