// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/crds"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/examples"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// InstallCRDs installs Karpenter's CRDs and ours, and returns when the API server serves them.
func InstallCRDs(ctx context.Context, kube client.Client) error {
	all, err := crds.All()
	if err != nil {
		return err
	}
	for _, crd := range all {
		if err := kube.Create(ctx, crd); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating CRD %s: %w", crd.Name, err)
		}
	}
	for _, crd := range all {
		err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			if err := kube.Get(ctx, client.ObjectKeyFromObject(crd), crd); err != nil {
				return false, err
			}
			for _, condition := range crd.Status.Conditions {
				if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
					return true, nil
				}
			}
			return false, nil
		})
		if err != nil {
			return fmt.Errorf("waiting for CRD %s: %w", crd.Name, err)
		}
	}
	return nil
}

// Kit is the set of objects that a user applies to get Nodes: the repository's kubeadm
// example. Its objects have a name of their own, so several kits can coexist.
type Kit struct {
	Templates, Values *corev1.Secret
	Template          *v1alpha1.ProxmoxUnmanagedTemplate
	Class             *v1alpha1.ProxmoxNodeClass
	Pool              *karpv1.NodePool
}

// NewKit reads examples/kubeadm. The caller may change the objects before Apply.
func NewKit(name, apiServer string) (*Kit, error) {
	k := &Kit{
		Templates: &corev1.Secret{}, Values: &corev1.Secret{},
		Template: &v1alpha1.ProxmoxUnmanagedTemplate{}, Class: &v1alpha1.ProxmoxNodeClass{}, Pool: &karpv1.NodePool{},
	}
	for file, objects := range map[string][]client.Object{
		"kubeadm/secrets.yaml":   {k.Templates, k.Values},
		"kubeadm/nodeclass.yaml": {k.Template, k.Class},
		"kubeadm/nodepool.yaml":  {k.Pool},
	} {
		if err := decode(file, objects...); err != nil {
			return nil, err
		}
	}
	k.Template.Name, k.Class.Name, k.Pool.Name = name, name, name
	k.Templates.Name, k.Values.Name = name+"-templates", name+"-values"
	k.Values.StringData["apiServer"] = apiServer
	k.Class.Spec.InstanceTemplateRef.Name = name
	k.Class.Spec.MetadataOptions.TemplatesRef.Name = k.Templates.Name
	k.Class.Spec.MetadataOptions.ValuesRef.Name = k.Values.Name
	k.Pool.Spec.Template.Spec.NodeClassRef.Name = name
	return k, nil
}

// ProxmoxCloudInitClass reads the class of examples/proxmox-cloud-init.
func ProxmoxCloudInitClass() (*v1alpha1.ProxmoxNodeClass, error) {
	class := &v1alpha1.ProxmoxNodeClass{}
	return class, decode("proxmox-cloud-init/nodeclass.yaml", &v1alpha1.ProxmoxUnmanagedTemplate{}, class)
}

// PlaceSnippet follows examples/proxmox-cloud-init: it creates a join token for all VMs and writes it into a snippet on each
// host, with the URL of the API server.
func (p *Plane) PlaceSnippet(ctx context.Context, proxmox *Proxmox, server, region string) error {
	const id, secret = "static", "0123456789abcdef"
	if err := p.Client.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-" + id}, Type: corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true",
			"auth-extra-groups": "system:bootstrappers:karpenter:proxmox",
		},
	}); err != nil {
		return fmt.Errorf("creating join token: %w", err)
	}
	snippet, err := examples.Files.ReadFile("proxmox-cloud-init/worker.cfg")
	if err != nil {
		return fmt.Errorf("reading example: %w", err)
	}
	proxmox.PutFile(pvesim.File{Storage: "local", Name: "snippets/worker.cfg", Text: strings.NewReplacer(
		"CA_CERTIFICATE", base64.StdEncoding.EncodeToString(p.Config.CAData), "API_SERVER", server, "JOIN_TOKEN", id+"."+secret, "REGION", region,
	).Replace(string(snippet))})
	return nil
}

// PreparationSecret reads the boot data of the builder VM of examples/kubeadm.
func PreparationSecret() (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	return secret, decode("kubeadm/prepare.yaml", secret)
}

// decode strictly decodes the documents of an example file in order.
func decode(file string, into ...client.Object) error {
	content, err := examples.Files.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading example: %w", err)
	}
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for _, object := range into {
		document, err := documents.Read()
		if err != nil {
			return fmt.Errorf("reading example %s: %w", file, err)
		}
		if err := yaml.UnmarshalStrict(document, object); err != nil {
			return fmt.Errorf("reading example %s: %w", file, err)
		}
	}
	if _, err := documents.Read(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading example %s: found more than the expected %d objects", file, len(into))
	}
	return nil
}

// Apply creates the kit's objects.
func (k *Kit) Apply(ctx context.Context, kube client.Client) error {
	for _, object := range []client.Object{k.Templates, k.Values, k.Template, k.Class, k.Pool} {
		if err := kube.Create(ctx, object); err != nil {
			return fmt.Errorf("creating %T %s: %w", object, object.GetName(), err)
		}
	}
	return nil
}

// InstallChart installs or upgrades the chart in a directory as a release in kube-system,
// without its CRDs. It returns helm's output if helm fails.
func (p *Plane) InstallChart(ctx context.Context, helm, chart, release string, values map[string]any) error {
	content, err := json.Marshal(values)
	if err != nil {
		return fmt.Errorf("encoding chart values: %w", err)
	}
	home, err := os.MkdirTemp("", "helm-")
	if err != nil {
		return fmt.Errorf("creating helm's directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(home) }()
	cmd := exec.CommandContext(ctx, helm, "upgrade", "--install", release, chart,
		"--namespace", metav1.NamespaceSystem, "--skip-crds", "--values", "-")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+p.Kubeconfig, "HELM_CONFIG_HOME="+home, "HELM_CACHE_HOME="+home, "HELM_DATA_HOME="+home)
	cmd.Stdin = bytes.NewReader(content)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("installing chart: %w\n%s", err, out)
	}
	return nil
}

// appNamespace is the namespace of the Deployments.
const appNamespace = metav1.NamespaceDefault

// Deployment returns a Deployment whose pods request one CPU each and have no termination
// grace period. Its pods have the label app with its name.
func Deployment(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	noGrace := int64(0)
	d := &appsv1.Deployment{}
	d.Name, d.Namespace = name, appNamespace
	d.Spec.Replicas = &replicas
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	d.Spec.Template.Labels = labels
	d.Spec.Template.Spec = corev1.PodSpec{
		TerminationGracePeriodSeconds: &noGrace,
		Containers: []corev1.Container{{
			Name: "app", Image: "registry.k8s.io/pause:3.10",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("512Mi"),
			}},
		}},
	}
	return d
}

// Scale changes the replicas of a Deployment.
func Scale(ctx context.Context, kube client.Client, name string, replicas int32) error {
	d := &appsv1.Deployment{}
	d.Name, d.Namespace = name, appNamespace
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	if err := kube.Patch(ctx, d, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("scaling %s: %w", name, err)
	}
	return nil
}

// Pods returns the pods of a Deployment that are not being deleted.
func Pods(ctx context.Context, kube client.Client, name string) ([]corev1.Pod, error) {
	list := &corev1.PodList{}
	if err := kube.List(ctx, list, client.InNamespace(appNamespace), client.MatchingLabels{"app": name}); err != nil {
		return nil, fmt.Errorf("listing pods of %s: %w", name, err)
	}
	return slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool { return !pod.DeletionTimestamp.IsZero() }), nil
}

// PodReady reports whether a pod is ready.
func PodReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// NodeReady reports whether a Node is ready.
func NodeReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
