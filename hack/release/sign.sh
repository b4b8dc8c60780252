#!/usr/bin/env bash
# Signs the image, charts and files of a release, and attests their provenance and bills of materials. "make release" runs
# it. COSIGN_FLAGS selects a key. Without it, cosign signs with the identity of the workflow that it runs in.
set -euo pipefail
: "${VERSION:?}" "${ARCHES:?}" "${IMAGE:?}" "${CHARTS:?}" "${CHART_VERSION:?}" "${DIR:?}" "${COSIGN:?}" "${CRANE:?}"
read -ra flags <<< "${COSIGN_FLAGS:-}"

# sign REFERENCE signs and attests what a tag refers to.
sign() {
	local digest
	digest=${1%:*}@$("$CRANE" digest "$1")
	"$COSIGN" sign --yes --recursive "${flags[@]}" "$digest"
	"$COSIGN" attest --yes "${flags[@]}" --type slsaprovenance1 --predicate "$DIR/provenance.json" "$digest"
}

sign "$IMAGE:$VERSION"
for arch in ${ARCHES//,/ }; do
	"$COSIGN" attest --yes "${flags[@]}" --type spdxjson --predicate "$DIR/controller_${VERSION}_linux_$arch.spdx.json" \
		"$IMAGE@$("$CRANE" digest --platform "linux/$arch" "$IMAGE:$VERSION")"
done
for chart in karpenter-provider-proxmox karpenter-provider-proxmox-crd; do
	sign "${CHARTS#oci://}/$chart:$CHART_VERSION"
done
# The checksums cover all other files.
cd "$DIR"
"$COSIGN" sign-blob --yes "${flags[@]}" --bundle checksums.txt.sigstore.json checksums.txt
"$COSIGN" attest-blob --yes "${flags[@]}" --type slsaprovenance1 --predicate provenance.json --bundle provenance.sigstore.json checksums.txt
