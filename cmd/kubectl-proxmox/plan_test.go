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
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/power"
	unmanagedstatus "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/unmanagedtemplate/status"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/whatif"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// planEnv is a Kubernetes cluster with Nodes, on two Hosts of 8 cores.
type planEnv struct {
	*testenv.Env
	class    *v1alpha1.ProxmoxNodeClass
	provider *cloudprovider.CloudProvider
	dir      string
}

func newPlanEnv(t *testing.T, args ...string) *planEnv {
	t.Helper()
	return newPlanEnvIn(t, func(*pvesim.Scenario) {}, args...)
}

// newPlanEnvIn returns a planEnv in a changed scenario.
func newPlanEnvIn(t *testing.T, change func(*pvesim.Scenario), args ...string) *planEnv {
	t.Helper()
	w := &planEnv{Env: testenv.New(t, testenv.NoPolling(), testenv.Hosts(2), testenv.Scenario(smallHosts), testenv.Scenario(change)), dir: t.TempDir()}
	template := w.Template()
	unmanagedstatus.Resolve(w.Inventory, template)
	w.Expect(w.Kube.Status().Update(t.Context(), template)).To(Succeed())
	w.class = w.Class()
	pool := w.Pool(w.class)
	setPoolStatus(w.Env, pool, nil)
	createController(w.Env, "karpenter", append(args, "--node-setting-file=")...)
	w.provider = cloudprovider.New(cloudprovider.Deps{
		Kube: w.Kube, VMs: w.Instances.VMs, Planner: w.Instances.Planner, Deleter: w.Instances.Deleter,
		Types: w.Types, Recorder: w.Events, Clock: w.Clock, Overlays: nodeoverlay.NewInstanceTypeStore(),
	})
	return w
}

// addClaim adds a NodeClaim whose VM is on a Host and has not joined.
func (w *planEnv) addClaim(name, host string, changes ...func(*karpv1.NodeClaim)) *karpv1.NodeClaim {
	w.T.Helper()
	claim := w.Claim(name, w.class, append(changes, testenv.OnHost(host))...)
	created, err := w.provider.Create(w.T.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	testenv.Reload(w.Env, claim)
	maps.Copy(claim.Labels, created.Labels)
	maps.Copy(claim.Annotations, created.Annotations)
	w.Expect(w.Kube.Update(w.T.Context(), claim)).To(Succeed())
	claim.Status = created.Status
	claim.StatusConditions().SetTrue(karpv1.ConditionTypeLaunched)
	w.Expect(w.Kube.Status().Update(w.T.Context(), claim)).To(Succeed())
	return claim
}

// addNode adds a Node on a Host, with a pod that requests CPUs.
func (w *planEnv) addNode(name, host, cpu string, changes ...func(*karpv1.NodeClaim)) {
	w.T.Helper()
	claim := w.addClaim(name, host, changes...)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: claim.Name, Labels: maps.Clone(claim.Labels)}, Spec: corev1.NodeSpec{ProviderID: claim.Status.ProviderID}}
	maps.Copy(node.Labels, map[string]string{karpv1.NodeRegisteredLabelKey: "true", karpv1.NodeInitializedLabelKey: "true", corev1.LabelHostname: node.Name})
	w.createNode(node, claim.Status.Allocatable)
	claim.Status.NodeName = node.Name
	for _, condition := range []string{karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized} {
		claim.StatusConditions().SetTrue(condition)
	}
	w.Expect(w.Kube.Status().Update(w.T.Context(), claim)).To(Succeed())
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: name, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "app", UID: "app", Controller: new(true)},
		}},
		Spec: corev1.PodSpec{NodeName: node.Name, Containers: []corev1.Container{{
			Name: "c", Image: "i", Env: []corev1.EnvVar{{Name: "PASSWORD", Value: "confidential"}},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}},
		}}},
	}
	w.Create(pod)
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: "debug", Image: "i", Command: []string{"confidential"},
	}}}
	w.Expect(w.Kube.SubResource("ephemeralcontainers").Update(w.T.Context(), pod)).To(Succeed())
}

// createNode creates a Node that is ready.
func (w *planEnv) createNode(node *corev1.Node, resources corev1.ResourceList) {
	w.T.Helper()
	w.Create(node)
	node.Spec.Taints = nil // the API server adds that of a Node that is not ready
	w.Expect(w.Kube.Update(w.T.Context(), node)).To(Succeed())
	node.Status.Capacity, node.Status.Allocatable = resources, resources
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	w.Expect(w.Kube.Status().Update(w.T.Context(), node)).To(Succeed())
}

// plan runs the command on a saved inventory with other names, so the output does not depend
// on those of the Env. Files in the command are those of writeManifests.
func (w *planEnv) plan(command string) string {
	w.T.Helper()
	saved := filepath.Join(w.dir, "saved.json")
	_, err := runIn(w.Env, "plan", "--save", saved)
	w.Expect(err).NotTo(HaveOccurred())
	content, err := os.ReadFile(saved)
	w.Expect(err).NotTo(HaveOccurred())
	args := []string{"plan", "--inventory", write(w.T, w.dir, "inventory.json", w.rename(string(content)))}
	for _, arg := range strings.Fields(command) {
		if filepath.Ext(arg) != "" {
			arg = filepath.Join(w.dir, arg)
		}
		args = append(args, arg)
	}
	out, err := run(w.T, args...)
	w.Expect(err).NotTo(HaveOccurred())
	return out
}

const webDeployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: web
        resources: {requests: {cpu: 1500m}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
`

// The examples of docs/plan.md are the output of these commands.
func TestPlanDocs(t *testing.T) {
	t.Parallel()
	w := newPlanEnv(t)
	w.addNode("kn52t", "pve1", "1500m")
	w.addNode("x8m4c", "pve2", "1500m")
	w.writeManifests()
	page, err := os.ReadFile("../../docs/plan.md")
	w.Expect(err).NotTo(HaveOccurred())
	for _, command := range []string{
		"-f web.yaml", "-f many.yaml", "-f many.yaml --new-node-setting-file settings.json", "--lose-host home/pve1", "-f web.yaml --lose-host home/pve1", "-f class.yaml",
	} {
		out := w.plan(command)
		if example := "```console\n$ kubectl proxmox plan " + command + "\n" + out + "```\n"; !strings.Contains(string(page), example) {
			t.Errorf("docs/plan.md does not contain this example:\n%s", example)
		}
	}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	w := newPlanEnv(t)
	w.addNode("a", "pve1", "1500m")
	w.writeManifests()
	var plan whatif.Plan
	w.Expect(json.Unmarshal([]byte(w.plan("-f many.yaml --lose-host home/pve2 -o json")), &plan)).To(Succeed())
	w.Expect(plan.Create).To(HaveLen(2), "a host of 8 CPUs with another guest and a node has capacity for two nodes")
	w.Expect(plan.Create).To(HaveEach(And(HaveField("Host", "pve1"), HaveField("CPUs", 2), HaveField("Pods", HaveLen(1)))))
	w.Expect(plan.Delete).To(BeEmpty())
	w.Expect(plan.Unschedulable).To(HaveLen(7))
	w.Expect(plan.PriceAfter).To(BeNumerically("~", 3*plan.PriceBefore, 1e-9))
	saved, err := os.ReadFile(filepath.Join(w.dir, "inventory.json"))
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(string(saved)).NotTo(Or(ContainSubstring("confidential"), ContainSubstring(pvesim.DefaultTokenSecret)))

	live, err := runIn(w.Env, "plan", "-f", filepath.Join(w.dir, "web.yaml"))
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(live).To(HavePrefix("VMs to create: 3\n"))
	// A manifest without the defaults of the API server changes nothing.
	same := write(t, w.dir, "same.yaml", w.manifest(testenv.NewNodeClass(w.class.Name, w.Named("ubuntu"), w.Name)))
	live, err = runIn(w.Env, "plan", "-f", same)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(live).To(MatchRegexp("^VMs to create: 0\nVMs to delete: 0\nPods that do not fit: 0\nPrice per hour: .*\n$"), "there is no note")
	claims := &karpv1.NodeClaimList{}
	w.Expect(w.Kube.List(t.Context(), claims)).To(Succeed())
	w.Expect(claims.Items).To(HaveLen(1), "nothing is created")
}

// decode returns the plan of a command.
func (w *planEnv) decode(out string, err error) whatif.Plan {
	w.T.Helper()
	w.Expect(err).NotTo(HaveOccurred())
	var plan whatif.Plan
	w.Expect(json.Unmarshal([]byte(out), &plan)).To(Succeed())
	return plan
}

// The VM on the lost host has no Node yet: no pods are on it, and pending pods are planned.
func TestPlanLostVMWithoutNode(t *testing.T) {
	t.Parallel()
	w := newPlanEnv(t)
	w.addClaim("a", "pve1")
	w.writeManifests()
	plan := w.decode(w.plan("-f web.yaml --lose-host home/pve1 -o json"), nil)
	w.Expect(plan.Delete).To(HaveLen(1))
	w.Expect(plan.Create).To(HaveLen(3))
	w.Expect(plan.Create).To(HaveEach(HaveField("Host", "pve2")))
	w.Expect(plan.Unschedulable).To(BeEmpty())
}

// The controller's node-policy applies to NodeClasses without spec.cpu.
func TestPlanNodePolicy(t *testing.T) {
	t.Parallel()
	w := newPlanEnv(t, "--node-policy=static")
	w.writeManifests()
	plan := w.decode(w.plan("-f web.yaml -o json"), nil)
	w.Expect(plan.Create).To(BeEmpty(), "no host can pin VMs")
	w.Expect(plan.Unschedulable).To(HaveLen(3))
}

// A host that was shut down to save energy is woken for VMs, unless it is lost.
func TestPlanSleepingHost(t *testing.T) {
	t.Parallel()
	w := newPlanEnv(t)
	w.writeManifests()
	id, err := clusterID(t.Context(), w.Kube)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(power.Store{Kube: w.Kube, Namespace: w.Name, KubeCluster: id}.Put(t.Context(), inventory.HostName{Region: testenv.Region, Host: "pve2"},
		&inventory.Sleep{State: inventory.Asleep, KubeCluster: id, Known: w.Inventory.View().Snapshots[testenv.Region].KnownHost("pve2")})).To(Succeed())
	w.Expect(w.Sim.HostDown("pve2", "noroute")).To(Succeed())
	w.Eventually(func() time.Time {
		w.Refresh()
		state, _ := w.Inventory.View().Host(testenv.Region, "pve2")
		return state.OfflineSince
	}).ShouldNot(BeZero())
	onSleeping := ContainElement(HaveField("Host", "pve2"))
	w.Expect(w.decode(w.plan("-f many.yaml -o json"), nil).Create).To(onSleeping)
	w.Expect(w.decode(w.plan("-f many.yaml --lose-host home/pve2 -o json"), nil).Create).To(And(Not(BeEmpty()), Not(onSleeping)))
}

// --node-setting-file replaces the settings of the controller, as in other commands.
func TestPlanNodeSettingFile(t *testing.T) {
	t.Parallel()
	w := newPlanEnv(t)
	w.writeManifests()
	manifest, settings := filepath.Join(w.dir, "many.yaml"), filepath.Join(w.dir, "settings.json")
	w.Expect(w.decode(runIn(w.Env, "plan", "-f", manifest, "-o", "json")).Unschedulable).NotTo(BeEmpty())
	w.Expect(w.decode(runIn(w.Env, "plan", "-f", manifest, "--node-setting-file", settings, "-o", "json")).Unschedulable).To(BeEmpty())
}

const batchObjects = `
apiVersion: batch/v1
kind: Job
metadata: {name: report, namespace: shop}
spec:
  parallelism: 3
  completions: 2
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: report, image: report, resources: {requests: {cpu: 1500m}}}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly, namespace: shop}
---
apiVersion: karpenter.proxmox.sinextra.dev/v1alpha1
kind: ProxmoxTemplate
metadata: {name: debian}
spec: {sourceImage: {url: https://example.com/debian.qcow2, imageName: debian.qcow2}, storageIDs: [local], network: [{bridge: vmbr0}]}
---
apiVersion: karpenter.sh/v1alpha1
kind: NodeOverlay
metadata: {name: price}
spec:
  requirements: [{key: kubernetes.io/os, operator: In, values: [linux]}]
  price: "2"
`

// Jobs are planned. A note names each object whose effect is not planned.
func TestPlanOtherKinds(t *testing.T) {
	t.Parallel()
	w := newPlanEnv(t, "--feature-gates=NodeOverlay=true")
	write(t, w.dir, "batch.yaml", batchObjects)
	plan := w.decode(w.plan("-f batch.yaml -o json"), nil)
	w.Expect(plan.Create).To(HaveLen(2))
	w.Expect(plan.Create).To(HaveEach(HaveField("PricePerHour", 2.0)), "the price of the overlay")
	w.Expect(plan.Notes).To(Equal([]string{
		"the pods of CronJob shop/nightly are not planned: pass a Deployment, StatefulSet, ReplicaSet, Job or pod",
		"the change of ProxmoxTemplate debian is not planned: VMs are planned with the templates that exist now",
	}))
}

func TestPlanInvalid(t *testing.T) {
	t.Parallel()
	w := newPlanEnv(t)
	unmatched := write(t, w.dir, "unmatched.yaml", strings.Replace(fmt.Sprintf(webDeployment, 1), "labels: {app: web}", "labels: {app: db}", 1))
	saved := filepath.Join(w.dir, "saved.json")
	out, err := runIn(w.Env, "plan", "--save", saved)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(out).To(Equal("saved the inventory to " + saved + "\n"))
	old := write(t, w.dir, "old.json", `{"format": 0}`)
	for want, args := range map[string][]string{
		"host region-1/pve9 does not exist; hosts: region-1/pve1, region-1/pve2":                                      {"--lose-host", testenv.Region + "/pve9"},
		`--lose-host: found host "pve1", want REGION/HOST, for example home/pve1`:                                     {"--lose-host", "pve1"},
		`Deployment web: spec.template.metadata.labels: Invalid value: {"app":"db"}: must match spec.selector`:        {"-f", unmatched},
		"reading the inventory " + old + ": found format 0, want 2: save it again with this version of the plugin":    {"--inventory", old},
		"if any flags in the group [save inventory] are set none of the others can be; [inventory save] were all set": {"--save", saved, "--inventory", saved},
		"reading the host settings: open " + filepath.Join(w.dir, "absent") + ": no such file or directory":           {"--new-node-setting-file", filepath.Join(w.dir, "absent")},
	} {
		_, err := runIn(w.Env, append([]string{"plan"}, args...)...)
		w.Expect(err).To(MatchError(want))
	}
}

// writeManifests writes the files that the examples name.
func (w *planEnv) writeManifests() {
	w.T.Helper()
	write(w.T, w.dir, "web.yaml", fmt.Sprintf(webDeployment, 3))
	write(w.T, w.dir, "many.yaml", fmt.Sprintf(webDeployment, 9))
	write(w.T, w.dir, "settings.json", `{"*": {"*": {"cpuratio": 2}}}`)
	class := &v1alpha1.ProxmoxNodeClass{ObjectMeta: metav1.ObjectMeta{Name: w.class.Name}, Spec: w.class.Spec}
	class.Spec.Tags = []string{"changed"}
	write(w.T, w.dir, "class.yaml", w.rename(w.manifest(class)))
}

// manifest returns a class as YAML.
func (w *planEnv) manifest(class *v1alpha1.ProxmoxNodeClass) string {
	w.T.Helper()
	class.APIVersion, class.Kind = v1alpha1.SchemeGroupVersion.String(), v1alpha1.ProxmoxNodeClassKind
	content, err := yaml.Marshal(class)
	w.Expect(err).NotTo(HaveOccurred())
	return string(content)
}

// rename replaces the names of the Env by those of the examples.
func (w *planEnv) rename(text string) string {
	return strings.NewReplacer(w.Named("pool"), "default", w.Named("default"), "default", w.Named(""), "default-", w.Name, "shop", testenv.Region, "home").Replace(text)
}

// smallHosts gives each Host 8 cores.
func smallHosts(s *pvesim.Scenario) {
	for i := range s.Hosts {
		s.Hosts[i].Cores = 8
	}
}
