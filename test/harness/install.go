// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/crds"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/examples"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// InstallCRDs installs Karpenter's CRDs, ours and the given ones, and returns when the API server
// serves them.
func InstallCRDs(ctx context.Context, kube client.Client, more ...*apiextensionsv1.CustomResourceDefinition) error {
	all, err := crds.All()
	if err != nil {
		return err
	}
	all = append(all, more...)
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

// objects returns the kit's objects in creation order.
func (k *Kit) objects() []client.Object {
	return []client.Object{k.Templates, k.Values, k.Template, k.Class, k.Pool}
}

// Apply creates the kit's objects.
func (k *Kit) Apply(ctx context.Context, kube client.Client) error {
	for _, object := range k.objects() {
		if err := kube.Create(ctx, object); err != nil {
			return fmt.Errorf("creating %T %s: %w", object, object.GetName(), err)
		}
	}
	return nil
}
