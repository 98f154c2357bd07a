# llama-server as `make llama-cpp` builds it, with CUDA's libraries from the project's wheels; nothing of remotegpu.
ARG BASE
FROM ${BASE}
COPY --from=llama llama-server libllama-server-impl.so *.so.0 /opt/llama/
COPY --from=cuda libcudart.so.13 libcublas.so.13 libcublasLt.so.13 /opt/llama/
COPY --from=host libgomp.so.1 /opt/llama/
ENV LD_LIBRARY_PATH=/opt/llama
USER 1000:1000
ENTRYPOINT ["/opt/llama/llama-server"]
