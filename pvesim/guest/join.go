// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"crypto"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// Files with a kubelet's identity. The private key of a pending request is kept
// too, so a restarted kubelet requests the same certificate.
const (
	kubeconfigFile  = "/etc/kubernetes/kubelet.conf"
	certificateFile = "/var/lib/kubelet/pki/kubelet-client-current.pem"
	pendingKeyFile  = "/var/lib/kubelet/pki/kubelet-client.key.tmp"
)

// apiAccess is a kubeconfig with the contents of the files that it references.
type apiAccess struct {
	server string
	ca     []byte
	token  string
	cert   *tls.Certificate
}

// identity returns the kubelet's credentials for the API server: those stored by an
// earlier boot if they are still valid, otherwise a new certificate requested with
// the bootstrap token.
func (g *guest) identity(ctx context.Context, s kubeletSettings) (apiAccess, error) {
	if access, ok := storedIdentity(g.storage, s.nodeName); ok {
		g.console.printf("kubelet: using the client certificate on the disk")
		return access, nil
	}
	bootstrap, err := s.bootstrap()
	if err != nil {
		return apiAccess{}, err
	}
	keyPEM, key, err := pendingKey(g.storage)
	if err != nil {
		return apiAccess{}, err
	}
	certPEM, err := g.requestCertificate(ctx, bootstrap, s.nodeName, key)
	if err != nil {
		return apiAccess{}, err
	}
	if err := storeIdentity(g.storage, bootstrap, append(certPEM, keyPEM...)); err != nil {
		return apiAccess{}, err
	}
	access, ok := storedIdentity(g.storage, s.nodeName)
	if !ok {
		return apiAccess{}, errors.New("the issued certificate is for another node or not currently valid")
	}
	return access, nil
}

// requestCertificate performs the kubelet's TLS bootstrap: it creates a certificate
// signing request with the bootstrap token and waits for the certificate.
func (g *guest) requestCertificate(ctx context.Context, bootstrap apiAccess, nodeName string, key crypto.Signer) ([]byte, error) {
	subject := pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + nodeName}
	request, err := cert.MakeCSR(key, &subject, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("creating certificate signing request: %w", err)
	}
	config, httpClient, err := bootstrap.client(ctx)
	if err != nil {
		return nil, err
	}
	defer httpClient.CloseIdleConnections()
	client, err := kubernetes.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("creating client: %w", err)
	}
	// Discard the logs of the helpers; errors are written to the console.
	ctx = klog.NewContext(ctx, logr.Discard())
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	requested, err := requestName(key, nodeName)
	if err != nil {
		return nil, err
	}
	name, uid, err := csr.RequestCertificateWithContext(ctx, client, request, requested, certificatesv1.KubeAPIServerClientKubeletSignerName, nil, usages, key)
	if err != nil {
		return nil, fmt.Errorf("failed to run kubelet, cannot request a certificate: %w", err)
	}
	g.console.printf("kubelet: waiting for the certificate of %s", name)
	// A kubelet exits after 15 minutes without a certificate, and is restarted.
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	certPEM, err := csr.WaitForCertificate(ctx, client, name, uid)
	if err != nil {
		return nil, fmt.Errorf("failed to run kubelet, no certificate: %w", err)
	}
	return certPEM, nil
}

// requestName depends on key and node only, so a restarted kubelet finds its
// earlier request.
func requestName(key crypto.Signer, nodeName string) (string, error) {
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return "", fmt.Errorf("encoding public key: %w", err)
	}
	sum := sha512.Sum512(append(public, nodeName...))
	return "node-csr-" + base64.RawURLEncoding.EncodeToString(sum[:32]), nil
}

// pendingKey returns the private key of this guest's request. It creates the key on
// the first attempt.
func pendingKey(disk pvesim.GuestDisk) ([]byte, crypto.Signer, error) {
	raw, ok := disk.Read(pendingKeyFile)
	if !ok {
		var err error
		if raw, err = keyutil.MakeEllipticPrivateKeyPEM(); err != nil {
			return nil, nil, fmt.Errorf("creating private key: %w", err)
		}
		disk.Write(pendingKeyFile, raw)
	}
	parsed, err := keyutil.ParsePrivateKeyPEM(raw)
	if err != nil {
		return nil, nil, fmt.Errorf("reading %s: %w", pendingKeyFile, err)
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, nil, fmt.Errorf("reading %s: not a private key", pendingKeyFile)
	}
	return raw, key, nil
}

// storeIdentity writes kubelet.conf and the certificate with its key.
func storeIdentity(disk pvesim.GuestDisk, access apiAccess, certAndKey []byte) error {
	const name = "default"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: access.server, CertificateAuthorityData: access.ca}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificate: certificateFile, ClientKey: certificateFile}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	raw, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("writing %s: %w", kubeconfigFile, err)
	}
	disk.Write(certificateFile, certAndKey)
	disk.Write(kubeconfigFile, raw)
	return nil
}

// storedIdentity returns the stored credentials if they are for this node and still
// valid.
func storedIdentity(disk pvesim.GuestDisk, nodeName string) (apiAccess, bool) {
	access, err := readKubeconfig(disk, kubeconfigFile)
	if err != nil {
		return apiAccess{}, false
	}
	raw, ok := disk.Read(certificateFile)
	if !ok {
		return apiAccess{}, false
	}
	pair, err := tls.X509KeyPair(raw, raw)
	if err != nil {
		return apiAccess{}, false
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil || time.Now().After(leaf.NotAfter) || leaf.Subject.CommonName != "system:node:"+nodeName {
		return apiAccess{}, false
	}
	access.cert = &pair
	return access, true
}

// readBootstrapKubeconfig reads the kubeconfig with the bootstrap token.
func readBootstrapKubeconfig(disk pvesim.GuestDisk, name string) (apiAccess, error) {
	access, err := readKubeconfig(disk, name)
	if err == nil && access.token == "" {
		err = fmt.Errorf("the bootstrap kubeconfig %s has no token", name)
	}
	return access, err
}

// readKubeconfig reads a kubeconfig and the files that it references on the same disk.
func readKubeconfig(disk pvesim.GuestDisk, name string) (apiAccess, error) {
	raw, ok := disk.Read(name)
	if !ok {
		return apiAccess{}, fmt.Errorf("unable to load kubeconfig, stat %s: no such file or directory", name)
	}
	config, err := clientcmd.Load(raw)
	if err != nil {
		return apiAccess{}, fmt.Errorf("unable to load kubeconfig %s: %w", name, err)
	}
	current := config.Contexts[config.CurrentContext]
	if current == nil {
		return apiAccess{}, fmt.Errorf("unable to load kubeconfig %s: no current context", name)
	}
	cluster, user := config.Clusters[current.Cluster], config.AuthInfos[current.AuthInfo]
	if cluster == nil || user == nil || cluster.Server == "" {
		return apiAccess{}, fmt.Errorf("unable to load kubeconfig %s: the current context has no server or no user", name)
	}
	access := apiAccess{server: cluster.Server, ca: cluster.CertificateAuthorityData, token: user.Token}
	if len(access.ca) == 0 && cluster.CertificateAuthority != "" {
		if access.ca, ok = disk.Read(cluster.CertificateAuthority); !ok {
			return apiAccess{}, fmt.Errorf("unable to read certificate-authority %s: no such file or directory", cluster.CertificateAuthority)
		}
	}
	if user.TokenFile != "" {
		token, ok := disk.Read(user.TokenFile)
		if !ok {
			return apiAccess{}, fmt.Errorf("unable to read tokenFile %s: no such file or directory", user.TokenFile)
		}
		access.token = strings.TrimSpace(string(token))
	}
	return access, nil
}
