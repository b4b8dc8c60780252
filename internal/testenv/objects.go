// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"fmt"
	"reflect"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// InstanceType is what claims ask for: 2 CPUs, 6 GiB.
const InstanceType = "t1.2VCPU-6GB"

// TemplatesSecret holds the boot data templates, in the world's namespace.
const TemplatesSecret = "templates"

func (w *Env) makeNamespace() {
	w.T.Helper()
	w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.Name}})
	w.Create(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: "kube-root-ca.crt"}, Data: map[string]string{"ca.crt": "CA"},
	})
	w.Create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: TemplatesSecret}, Data: map[string][]byte{
		"user-data": []byte("#cloud-config\nhostname: {{ .Metadata.Hostname }}\n"),
	}})
}

// Create an object.
func (w *Env) Create(o client.Object) {
	w.T.Helper()
	w.Expect(w.Kube.Create(w.T.Context(), o)).To(gomega.Succeed())
}

// Template makes a ProxmoxUnmanagedTemplate that looks for the scenario's own.
func (w *Env) Template(changes ...func(*v1alpha1.ProxmoxUnmanagedTemplate)) *v1alpha1.ProxmoxUnmanagedTemplate {
	w.T.Helper()
	template := &v1alpha1.ProxmoxUnmanagedTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: w.Named("ubuntu")},
		Spec:       v1alpha1.ProxmoxUnmanagedTemplateSpec{TemplateName: "ubuntu"},
	}
	for _, change := range changes {
		change(template)
	}
	w.Create(template)
	return template
}

// NewClass makes a NodeClass that nobody has checked yet.
func (w *Env) NewClass(changes ...func(*v1alpha1.ProxmoxNodeClass)) *v1alpha1.ProxmoxNodeClass {
	w.T.Helper()
	class := &v1alpha1.ProxmoxNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: w.Named("default")},
		Spec: v1alpha1.ProxmoxNodeClassSpec{
			InstanceTemplateRef: v1alpha1.InstanceTemplateReference{Kind: "ProxmoxUnmanagedTemplate", Name: w.Named("ubuntu")},
			BootDevice:          v1alpha1.BootDevice{Size: "30G"},
			MetadataOptions: v1alpha1.MetadataOptions{
				Type: v1alpha1.MetadataTypeCDROM, TemplatesRef: &v1alpha1.SecretReference{Namespace: w.Name, Name: TemplatesSecret},
			},
			Tags: []string{"karpenter"},
		},
	}
	for _, change := range changes {
		change(class)
	}
	w.Create(class)
	return class
}

// Class makes a NodeClass that is Ready on all Hosts of Region.
func (w *Env) Class(changes ...func(*v1alpha1.ProxmoxNodeClass)) *v1alpha1.ProxmoxNodeClass {
	w.T.Helper()
	class := w.NewClass(changes...)
	for i := range w.setup.hosts {
		class.Status.SelectedZones = append(class.Status.SelectedZones, fmt.Sprintf("%s/pve%d/%d", Region, i+1, 9000+i))
	}
	w.MarkReady(class)
	return class
}

// MarkReady writes the status of a class that was checked and found good.
func (w *Env) MarkReady(class *v1alpha1.ProxmoxNodeClass) {
	w.T.Helper()
	for _, condition := range class.StatusConditions().List() {
		if condition.Type != status.ConditionReady {
			class.StatusConditions().SetTrue(condition.Type)
		}
	}
	w.Expect(w.Kube.Status().Update(w.T.Context(), class)).To(gomega.Succeed())
	w.Expect(class.StatusConditions().Get(status.ConditionReady).IsTrue()).To(gomega.BeTrue())
}

// Pool makes a NodePool of a class.
func (w *Env) Pool(class *v1alpha1.ProxmoxNodeClass, changes ...func(*karpv1.NodePool)) *karpv1.NodePool {
	w.T.Helper()
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: w.Named("pool")}}
	pool.Spec.Template.Spec.NodeClassRef = ClassRef(class)
	pool.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{{
		Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{InstanceType},
	}}
	pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("Never")
	for _, change := range changes {
		change(pool)
	}
	w.Create(pool)
	return pool
}

// ClassRef refers to a class.
func ClassRef(class *v1alpha1.ProxmoxNodeClass) *karpv1.NodeClassReference {
	return &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.ProxmoxNodeClassKind, Name: class.Name}
}

// Claim makes a NodeClaim as core would, before Create was called.
func (w *Env) Claim(name string, class *v1alpha1.ProxmoxNodeClass, changes ...func(*karpv1.NodeClaim)) *karpv1.NodeClaim {
	w.T.Helper()
	claim := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: w.Named(name), Labels: map[string]string{karpv1.NodePoolLabelKey: w.Named("pool")}},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef: ClassRef(class),
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{{
				Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{InstanceType},
			}},
		},
	}
	for _, change := range changes {
		change(claim)
	}
	w.Create(claim)
	return claim
}

// Planned is a claim that core has an answer for: it has intent and providerID.
func (w *Env) Planned(name string, class *v1alpha1.ProxmoxNodeClass, changes ...func(*karpv1.NodeClaim)) *karpv1.NodeClaim {
	w.T.Helper()
	claim := w.Claim(name, class, changes...)
	in, err := w.Instances.Planner.Plan(w.T.Context(), claim, class, nil)
	w.Expect(err).NotTo(gomega.HaveOccurred())
	Reread(w, claim)
	claim.Status.ProviderID, claim.Status.ImageID = in.ProviderID(), in.ImageID
	w.Expect(w.Kube.Status().Update(w.T.Context(), claim)).To(gomega.Succeed())
	return claim
}

// Launched is a claim whose VM runs and is in the view.
func (w *Env) Launched(name string, class *v1alpha1.ProxmoxNodeClass, changes ...func(*karpv1.NodeClaim)) *karpv1.NodeClaim {
	w.T.Helper()
	claim := w.Planned(name, class, changes...)
	w.Expect(w.Instances.Launcher.Launch(w.T.Context(), claim, class)).To(gomega.Succeed())
	Reread(w, claim)
	w.Eventually(func() bool {
		w.Refresh()
		vms, err := w.Instances.VMs.List()
		w.Expect(err).NotTo(gomega.HaveOccurred())
		for _, vm := range vms {
			if vm.ClaimUID == string(claim.UID) && vm.Status == "running" {
				return true
			}
		}
		return false
	}).WithTimeout(10*time.Second).Should(gomega.BeTrue(), "the VM is in the view")
	return claim
}

// Intent of a claim.
func (w *Env) Intent(claim *karpv1.NodeClaim) instance.Intent {
	w.T.Helper()
	in, ok, err := instance.ReadIntent(claim)
	w.Expect(err).NotTo(gomega.HaveOccurred())
	w.Expect(ok).To(gomega.BeTrue(), "nodeclaim %s has an intent", claim.Name)
	return in
}

// Reread brings an object up to what the API server has.
func Reread[T client.Object](w *Env, o T) T {
	w.T.Helper()
	key := client.ObjectKeyFromObject(o)
	// Get decodes into what is there: fields that are gone would stay.
	value := reflect.ValueOf(o).Elem()
	value.Set(reflect.Zero(value.Type()))
	w.Expect(w.Kube.Get(w.T.Context(), key, o)).To(gomega.Succeed())
	return o
}

// Gone tells whether the API server has an object no more.
func (w *Env) Gone(o client.Object) bool {
	w.T.Helper()
	again, ok := o.DeepCopyObject().(client.Object)
	w.Expect(ok).To(gomega.BeTrue())
	err := w.Kube.Get(w.T.Context(), client.ObjectKeyFromObject(o), again)
	w.Expect(client.IgnoreNotFound(err)).NotTo(gomega.HaveOccurred())
	return apierrors.IsNotFound(err)
}

// Annotate sets annotations of an object; an empty value removes one.
func (w *Env) Annotate(o client.Object, values map[string]string) {
	w.T.Helper()
	stored, ok := o.DeepCopyObject().(client.Object)
	w.Expect(ok).To(gomega.BeTrue())
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	for key, value := range values {
		annotations[key] = value
		if value == "" {
			delete(annotations, key)
		}
	}
	o.SetAnnotations(annotations)
	w.Expect(w.Kube.Patch(w.T.Context(), o, client.MergeFrom(stored))).To(gomega.Succeed())
}

// VMs are the guests of Region in our range, as Proxmox lists them now.
func (w *Env) VMs() []proxmox.GuestRow {
	w.T.Helper()
	resources, err := w.Clients[Region].Resources(w.T.Context())
	w.Expect(err).NotTo(gomega.HaveOccurred())
	var out []proxmox.GuestRow
	for _, row := range resources.Guests {
		if row.VMID >= 20000 {
			out = append(out, row)
		}
	}
	return out
}

// Running asks Proxmox whether a claim's VM runs; the list of guests lags behind.
func (w *Env) Running(claim *karpv1.NodeClaim) bool {
	w.T.Helper()
	in := w.Intent(claim)
	state, err := w.Clients[Region].VMStatus(w.T.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(gomega.HaveOccurred())
	return state.Running
}

// PowerOff ends a claim's guest, as a reboot of its Host would, and waits until the
// view shows it.
func (w *Env) PowerOff(claim *karpv1.NodeClaim) {
	w.T.Helper()
	vmid := w.Intent(claim).VMID
	w.Expect(w.Sim.PowerOffGuest(vmid)).To(gomega.Succeed())
	w.Eventually(func() string {
		w.Refresh()
		guest, _ := w.Inventory.View().Guest(Region, vmid)
		return guest.Status
	}).WithTimeout(10 * time.Second).Should(gomega.Equal("stopped"))
}

// BootDrives are the ISOs of ours on a Host.
func (w *Env) BootDrives(host string) []string {
	w.T.Helper()
	volumes, err := w.Clients[Region].Volumes(w.T.Context(), host, "local", "iso")
	w.Expect(err).NotTo(gomega.HaveOccurred())
	var out []string
	for _, volume := range volumes {
		out = append(out, volume.ID)
	}
	return out
}

// Tokens are the names of the claims that have a join token.
func (w *Env) Tokens() []string {
	w.T.Helper()
	tokens, err := w.Boot.Tokens.ListOwned(w.T.Context())
	w.Expect(err).NotTo(gomega.HaveOccurred())
	var out []string
	for _, token := range tokens {
		out = append(out, token.Claim.Name)
	}
	return out
}

// DestroyByHand removes a VM as an admin would, behind our back.
func (w *Env) DestroyByHand(host string, vmid int) {
	w.T.Helper()
	c := w.Clients[Region]
	for _, step := range []func() (proxmox.UPID, error){
		func() (proxmox.UPID, error) { return c.StopVM(w.T.Context(), host, vmid) },
		func() (proxmox.UPID, error) { return c.DestroyVM(w.T.Context(), host, vmid) },
	} {
		task, err := step()
		w.Expect(err).NotTo(gomega.HaveOccurred())
		status, err := proxmox.WaitTask(w.T.Context(), c, task, proxmox.WaitOptions{Clock: w.Clock})
		w.Expect(err).NotTo(gomega.HaveOccurred())
		w.Expect(status.Err()).NotTo(gomega.HaveOccurred())
	}
}
